"""The generator of floor 0: vendor headers -> JSON facts -> Python modules.

Three steps, run from the repository root::

    python -m codegen parse     headers (from pip wheels) -> codegen/api/*.json; only when a version moves
    python -m codegen emit      JSON + overrides.toml -> src/lamina/c/{cudnn,dnnl,errors}.py and report.md
    python -m codegen check     emit in memory and compare; needs no header, no GPU, no libclang

The facts are names, types, directions, values and versions; the vendors' prose is not copied.
"""
