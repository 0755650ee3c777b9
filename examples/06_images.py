"""From the bytes of a JPEG file to a network's input, and back to a file.

Prints the result of each step: the picture as decoded, scaled to 64 x 64, as a normalized batch, and the size of the
thumbnail's file. On a GPU nvImageCodec decodes and encodes there (lamina[image-cu13]), on the CPU Pillow does.
"""

import numpy as np

from lamina import data

y, x = np.mgrid[0:240, 0:320]
waves = np.stack([np.sin(x / 40), np.cos(y / 30), np.sin((x + y) / 50)], -1)
file = data.encode_image((127 + 100 * waves).astype(np.uint8), quality=90)

picture = data.decode_image(file, device="cpu")
print(f"decoded    {picture.spec}")
small = data.resize(picture, 64)
print(f"scaled     {small.spec}")
batch = data.normalize(small.reshape(1, *small.shape), mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
print(f"normalised {batch.spec}")
print(f"thumbnail  {len(data.encode_image(small))} bytes of JPEG")
