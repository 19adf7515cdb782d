"""MR² in the Hugging Face Trainer, text and images alike, offline: ``python examples/huggingface_trainer.py``.

Needs ``pip install 'classmargin[huggingface]'``. The model is tiny and random; take
``AutoModelForSequenceClassification.from_pretrained(...)`` instead, nothing else changes.
"""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from classmargin.integrations.huggingface import TrainerMargin, class_tier_metrics

K = 3
torch.manual_seed(0)
words = torch.randint(K + 1, 30, (60, 8))
labels = torch.arange(60) % K
words[:, 0] = labels + 1  # the first word tells the class
data = [{"input_ids": row, "labels": label} for row, label in zip(words, labels, strict=True)]


def make_trainer(folder: str) -> Trainer:
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertForSequenceClassification(BertConfig(vocab_size=30, num_labels=K, **size))
    margin = TrainerMargin(model)  # new
    return Trainer(
        model,
        TrainingArguments(
            folder,
            num_train_epochs=6,
            gradient_accumulation_steps=2,
            learning_rate=1e-2,
            eval_strategy="epoch",
            save_strategy="epoch",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=data,
        eval_dataset=data,
        compute_loss_func=margin,  # new
        callbacks=[margin],  # new: keeps the class statistics with the checkpoints
        compute_metrics=class_tier_metrics,  # thirds, worst class and gap at each evaluation
    )


with tempfile.TemporaryDirectory() as folder:
    trainer = make_trainer(folder)
    trainer.train()
    result = trainer.evaluate()
    print({name: round(result[f"eval_{name}"], 3) for name in ("overall", "easy", "medium", "hard", "worst")})

    again = make_trainer(folder)
    again.train(resume_from_checkpoint=f"{folder}/checkpoint-{trainer.state.global_step // 2}")
    same = all(torch.equal(a, b) for a, b in zip(trainer.model.parameters(), again.model.parameters(), strict=True))
    print(f"resumed run equals the uninterrupted one: {same}")
