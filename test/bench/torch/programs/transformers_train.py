"""transformers: its Trainer trains a small BERT with random weights in mixed precision, with gradient accumulation."""
import contextlib
import hashlib
import os
import sys
import tempfile

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import accelerate  # noqa: E402, F401
import torch  # noqa: E402
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        tokens = (torch.arange(32) * (index + 3)) % 1000
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": torch.tensor(index % 4)}


def main():
    torch.use_deterministic_algorithms(True)
    set_seed(0)
    model = BertForSequenceClassification(BertConfig(
        vocab_size=1000, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, num_labels=4,
        attn_implementation="eager"))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=30, per_device_train_batch_size=16, gradient_accumulation_steps=2, learning_rate=1e-3,
            bf16=True, logging_strategy="no", save_strategy="no", report_to="none", seed=0, dataloader_num_workers=1,
            disable_tqdm=True)
        with contextlib.redirect_stdout(sys.stderr):  # it prints how long it took
            Trainer(model=model, args=arguments, train_dataset=Sentences()).train()
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.cpu().numpy().tobytes())
    print(digest.hexdigest())


if __name__ == "__main__":
    main()
