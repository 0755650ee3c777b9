"""Train a small character-level GPT-2 on a few lines, and let it continue their beginnings.

Prints the falling loss, and the network's continuation of the first word of each line. With
`nn.GPT2LMHeadModel()` and published weights the network is GPT-2; they load by name.
"""

import numpy as np

import lamina as lm
from lamina import infer, nn, optim

LINES = [
    "the quick brown fox jumps over the lazy dog.",
    "pack my box with five dozen big liquor jugs.",
    "how vexingly quick daft zebras can jump now.",
    "sphinx of black quartz, judge my solemn vow.",
]
letters = sorted(set("".join(LINES)))
lm.manual_seed(0)
net = nn.GPT2LMHeadModel(len(letters), n_positions=64, n_embd=48, n_layer=2, n_head=4)
step = lm.train_step(net, nn.next_token_loss, optim.Adam(lr=3e-3), device="auto")

ids = np.array([[letters.index(letter) for letter in line] for line in LINES])
for i in range(150):
    loss = step(ids, ids)
    if i % 50 == 49:
        print(f"step {i + 1}: loss {loss.item():.2f}")

for line in LINES:
    begun = line.split()[0]
    prompt = np.array([[letters.index(letter) for letter in begun]])
    text = infer.generate(net, prompt, len(line) - len(begun))
    print("".join(letters[i] for i in text[0]))
