"""Floor 0: the C APIs of cuDNN and oneDNN, name for name (`lamina.c.cudnn`, `lamina.c.dnnl`).

Nothing is opened at import; a library is looked for at the first call.
"""
