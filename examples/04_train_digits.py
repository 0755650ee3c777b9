"""Train a small network on scikit-learn's handwritten digits, in a custom loop.

Prints loss and accuracy on the validation digits after each epoch, and at the end the accuracy on the test digits,
which is above 90 %.
`lamina train alexnet --data digits` does the same with AlexNet, a progress bar and checkpoints.
"""

import lamina as lm
from lamina import nn, optim

lm.manual_seed(0)
net = nn.LeNet(in_channels=1, num_classes=10)
digits = lm.data.digits(batch_size=32, size=28)
rate = optim.schedule.warm_up(optim.schedule.cosine(0.02, 4 * len(digits)), 10)
step = lm.train_step(net, lm.ops.cross_entropy, optim.SGD(rate, momentum=0.9), device="auto")

for epoch in range(4):
    for images, labels in digits:
        loss = step(images, labels)
    scores = lm.evaluate(net, lm.data.digits(batch_size=128, size=28, split="validation"))
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}, validation {scores}")

scores = lm.evaluate(net, lm.data.digits(batch_size=128, size=28, split="test"))
print(f"test digits: {scores}")
