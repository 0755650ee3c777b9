"""Train a speech network by CTC: audio frames to letters, without an alignment of frames and letters.

Prints the falling loss, and the letter error rate on new utterances, which ends below 20 %. A letter here
is some frames of noise around a vector of its own; utterances have different lengths. The network is Deep Speech.
"""

import numpy as np

import lamina as lm
from lamina import nn, ops, optim, train

CLASSES, FEATURES = 6, 12  # class 0 is the blank between letters
lm.manual_seed(0)
rng = np.random.default_rng(0)
sounds = rng.standard_normal((CLASSES, FEATURES))
sounds[0] = 0


def spoken(count):
    """Frames (count, 1, 24, FEATURES) and their lengths, letters (count, 5) and their lengths."""
    frames, labels = np.zeros((count, 1, 24, FEATURES), np.float32), np.zeros((count, 5), np.int64)
    lengths, letters = np.zeros(count, np.int64), rng.integers(2, 6, count)
    for n in range(count):
        labels[n, : letters[n]] = rng.integers(1, CLASSES, letters[n])
        shown = [0]
        for letter in labels[n, : letters[n]]:
            shown += [letter] * rng.integers(1, 4) + [0]
        lengths[n] = len(shown)
        frames[n, 0, : len(shown)] = sounds[shown] + 0.7 * rng.standard_normal((len(shown), FEATURES))
    return frames, lengths, labels, letters


def loss_fn(log_probs, targets):
    """CTC of log-probabilities (N, L, CLASSES)."""
    labels, lengths, letters = targets
    return ops.ctc_loss(log_probs.transpose(0, 1), labels, lengths, letters)


net = nn.DeepSpeech(FEATURES, n_hidden=64, n_class=CLASSES)
step = lm.train_step(net, loss_fn, optim.Adam(lr=2e-3), device="auto", clip_norm=1.0)
for i in range(150):
    frames, lengths, labels, letters = spoken(16)
    loss = step((frames, lengths), (labels, lengths, letters))
    if i % 50 == 49:
        print(f"step {i + 1}: loss {loss.item():.2f}")

frames, lengths, labels, letters = spoken(64)
log_probs = net.eval()(frames, lengths).numpy()
read = train.metrics.greedy_ctc(log_probs.transpose(1, 0, 2), lengths)
spelled = [row[:count].tolist() for row, count in zip(labels, letters, strict=True)]
errors = sum(train.metrics.edit_distance(a, b) for a, b in zip(read, spelled, strict=True))
print(f"{100 * errors / letters.sum():.1f} % of the letters are wrong")
