"""Class offsets for any scikit-learn classifier, and their price: ``python examples/class_offsets.py``."""

from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from classmargin import ClassOffsetClassifier

X, y = load_digits(return_X_y=True)
X, X_test, y, y_test = train_test_split(X, y, test_size=0.5, stratify=y, random_state=0)
model = ClassOffsetClassifier(LogisticRegression(C=1e-4, max_iter=1000), objective="hard", trade=0.5).fit(X, y)
print("trade  overall  hard   worst   (held-out scores of the training rows)")
for point in model.pareto_:
    print(f"{point['trade']:5.2f}  {point['overall']:.3f}    {point['hard']:.3f}  {point['worst']:.3f}")
print(f"test accuracy {model.score(X_test, y_test):.3f}, without offsets {model.estimator_.score(X_test, y_test):.3f}")
