"""What environments of launchers say."""

import pytest

from lamina.runtime.ranks.launcher import Launcher, find_launcher, first_host

TORCHRUN = {
    "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "gpu1",
    "MASTER_PORT": "29500",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}  # fmt: skip
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SLURM = {
    "SLURM_PROCID": "6", "SLURM_STEP_NUM_TASKS": "7", "SLURM_LOCALID": "2", "SLURM_NODEID": "1", "SLURM_STEP_ID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "4,3", "SLURM_STEP_NODELIST": "gpu[007,012]", "SLURM_JOB_ID": "100",
}  # fmt: skip


@pytest.mark.feature("B055")
@pytest.mark.parametrize(
    ("environ", "launcher"),
    [
        ({}, Launcher("none")),
        (TORCHRUN, Launcher("environment", 5, 8, 1, 4, "tcp", "gpu1", 29500)),
        (TORCHRUN | {"TORCHELASTIC_RUN_ID": "x"}, Launcher("torchrun", 5, 8, 1, 4, "tcp", "gpu1", 29500)),
        (TORCHRUN | {"LAMINA_RUN_ID": "x"}, Launcher("lamina run", 5, 8, 1, 4, "tcp", "gpu1", 29500)),
        (TORCHRUN | MPICH | SLURM, Launcher("environment", 5, 8, 1, 4, "tcp", "gpu1", 29500)),
        (OPEN_MPI, Launcher("Open MPI", 3, 4, 1, 2, "mpi")),
        (OPEN_MPI | SLURM, Launcher("Open MPI", 3, 4, 1, 2, "mpi")),
        (MPICH, Launcher("MPICH", 1, 2, 1, 2, "mpi")),
        (SLURM, Launcher("Slurm", 6, 7, 2, 3, "tcp", "gpu007", 20700)),
        (SLURM | {"PMIX_RANK": "6"}, Launcher("Slurm", 6, 7, 2, 3, "mpi", "gpu007", 20700)),
        (SLURM | {"SLURM_STEP_ID": "4294967291"}, Launcher("none")),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, Launcher("none")),
        ({"RANK": "1"}, Launcher("none")),  # somebody's own
        (
            SLURM | {"WORLD_SIZE": "7", "MASTER_ADDR": "gpu007"},
            Launcher("Slurm", 6, 7, 2, 3, "tcp", "gpu007", 20700),
        ),
    ],
)
def test_launchers(environ: dict[str, str], launcher: Launcher) -> None:
    assert find_launcher(environ) == launcher


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (TORCHRUN | {"RANK": "x"}, "RANK must be a number, got 'x'"),
        (TORCHRUN | {"RANK": "8"}, "environment: rank 8 is not among 8 ranks"),
        (TORCHRUN | {"MASTER_PORT": "99999"}, "MASTER_PORT must be from 0 to 65535, got 99999"),
        ({"RANK": "1", "MASTER_ADDR": "a"}, "RANK and MASTER_ADDR are set, WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "WORLD_SIZE and MASTER_ADDR are set, RANK is not"),
        (TORCHRUN | {"LOCAL_RANK": "4"}, "local rank 4 is not among the 4 of this machine"),
        (
            {"OMPI_COMM_WORLD_RANK": "0"},
            "OMPI_COMM_WORLD_SIZE is not set, but other variables of its launcher are",
        ),
    ],
)
def test_contradictions_are_named(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_launcher(environ)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("a", "a"),
        ("a1,b2", "a1"),
        ("gpu[007-009,12],login", "gpu007"),
        ("n[3,9]-ib", "n3-ib"),
        ("localhost", "localhost"),
    ],
)
def test_first_host_of_a_list_of_nodes(nodes: str, first: str) -> None:
    assert first_host(nodes) == first
