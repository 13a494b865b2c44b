"""A ViT and a BERT, trained on images with captions by the Trainer: python examples/hf_trainer.py

Two small towers from their configs, as in CLIP, with a linear head each. What VCMM adds is the
trainer's class and its last three arguments. The samples follow from a seed: an image shows its
class by the brightness of its quarters, under noise; a caption names it, among other words.
"""

import tempfile
from functools import partial

import torch
from torch import nn
from transformers import BertConfig, BertModel, TrainingArguments, ViTConfig, ViTModel, set_seed

from vcmm import VCMM
from vcmm.integrations.transformers import VCMMTrainer

CLASSES, WORDS = 4, 40
SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


class ImageText(nn.Module):
    def __init__(self):
        super().__init__()
        vit = ViTConfig(**SIZE, intermediate_size=64, image_size=16, patch_size=8)
        bert = BertConfig(**SIZE, intermediate_size=64, vocab_size=WORDS)
        self.image = ViTModel(vit, add_pooling_layer=False)
        self.text = BertModel(bert, add_pooling_layer=False)
        self.image_head, self.text_head = nn.Linear(32, CLASSES), nn.Linear(32, CLASSES)

    def forward(self, pixel_values, input_ids, labels):
        image = self.image_head(self.image(pixel_values).last_hidden_state[:, 0])
        text = self.text_head(self.text(input_ids).last_hidden_state[:, 0])
        logits = (image + text) / 2
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def samples(n, seed):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (n,), generator=g)
    quarters = nn.functional.one_hot(labels, CLASSES).float().view(n, 1, 2, 2)
    images = quarters.repeat(1, 3, 1, 1).repeat_interleave(8, 2).repeat_interleave(8, 3)
    images = images + 2 * torch.randn(images.shape, generator=g)
    captions = torch.randint(CLASSES, WORDS, (n, 6), generator=g)
    captions[:, 3] = torch.where(torch.rand(n, generator=g) < 0.8, labels, captions[:, 3])
    return [
        {"pixel_values": image, "input_ids": caption, "labels": label}
        for image, caption, label in zip(images, captions, labels, strict=True)
    ]


def accuracy(predicted):
    return {"accuracy": float((predicted.predictions.argmax(-1) == predicted.label_ids).mean())}


def trainer_in(folder, **settings):
    set_seed(0)
    model = ImageText()
    return VCMMTrainer(
        model,
        TrainingArguments(
            folder, learning_rate=1e-3, weight_decay=0.1, logging_steps=10, **settings
        ),
        train_dataset=samples(1024, seed=1),
        eval_dataset=samples(512, seed=2),
        compute_metrics=accuracy,
        modalities={m: [getattr(model, m), getattr(model, f"{m}_head")] for m in ("image", "text")},
        make=partial(VCMM, heads={"image": model.image_head, "text": model.text_head}),
        target="labels",
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_in(folder, num_train_epochs=3, per_device_train_batch_size=32)
        trainer.train()
        print(trainer.evaluate()["eval_accuracy"], trainer.vcmm.metrics())
