"""Sweeps: search hyper-parameters on validation, test the chosen ones once, at the end.

::

    --search words -> space.Parameter …          what may vary
    SweepPlan (plan)                             everything that decides the sweep, as one JSON file
    worker.work(plan, folder)                    ask the study, train one trial, tell the study; many may run
        study     shared storage, dead workers' trials taken over
        trial     one training without a look at the test set
    run.run_sweep                                reference, workers, choice, test of the chosen one
    result, pages                                rows, best trial, table, importance

Several processes and machines work on one study through its storage; none of them is the master.
"""
