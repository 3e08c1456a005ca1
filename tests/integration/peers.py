"""What the scripts share that train a model with Tessera and with others in turns: the peers' ranks, their steps, and figures of a run."""
import json
import os
import pathlib
import platform
import resource
import socket
import statistics
import subprocess
import sys
import time

LEFT_OUT = 2  # first steps of a run, which its figures leave out


def status(key):
    """Bytes that /proc/self/status gives."""
    return next(int(line.split()[1]) for line in pathlib.Path("/proc/self/status").read_text().splitlines() if line.startswith(key + ":")) * 1024


def write_tokens(path, run):
    """Few different tokens, so that losses fall."""
    import torch
    tokens = torch.randint(0, 200, (run["steps"] * run["batch"] * run["length"] + 1,), generator=torch.Generator().manual_seed(5))
    path.write_bytes(tokens.to(torch.uint16).numpy().tobytes())


def train_here(path, run, model, backward, update):
    """A rank's steps on its rows of the tokens of `path`; the first rank prints losses (means over the ranks), seconds, and memory of the rank with
    most: `peak_bytes` from its start on, `steps_bytes` of the steps alone, `alone_bytes` as run["alone"] has them. Ends the process."""
    import torch
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    tokens = torch.tensor(memoryview(path.read_bytes()).cast("H").tolist())
    loaded = status("VmHWM")
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    losses, seconds, mine = [], [], run["batch"] // ranks
    for step in range(run["steps"]):
        if step == LEFT_OUT:
            cpu = time.process_time()
        began = time.perf_counter()
        starts = [(step * run["batch"] + rank * mine + row) * run["length"] for row in range(mine)]
        rows = torch.stack([tokens[start:start + run["length"] + 1] for start in starts])
        logits = model(input_ids=rows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
        del logits
        backward(loss)
        update()
        seconds.append(time.perf_counter() - began)
        loss = loss.detach().clone()
        torch.distributed.all_reduce(loss)
        losses.append(loss.item() / ranks)
    cpu = time.process_time() - cpu
    figures = [None] * ranks
    torch.distributed.all_gather_object(figures, (loaded, status("VmHWM"), run.get("alone"), cpu / (run["steps"] - LEFT_OUT)))
    if rank == 0:
        loaded, steps, alone, _ = max(figures, key=lambda each: max(each[:2]))
        print(json.dumps({"losses": losses, "seconds": seconds, "peak_bytes": max(loaded, steps), "steps_bytes": steps, "alone_bytes": alone,
                          "step_cpu_seconds": sum(each[3] for each in figures)}), flush=True)
    torch.distributed.barrier()
    os._exit(0)  # Gloo's threads now and then abort an ordinary exit


def start_ranks(script, folder, name, run, ranks, threads):
    """What `script --peer FOLDER NAME RUN` prints from `train_here`, on ranks of this machine."""
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        port = any_port.getsockname()[1]
    started = []
    for rank in range(ranks):
        more = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port, "OMP_NUM_THREADS": threads}
        output = open(folder / f"output_{rank}", "w")
        started.append(subprocess.Popen([sys.executable, script, "--peer", str(folder), name, json.dumps(run)], stdout=output,
                                        stderr=subprocess.STDOUT, env=os.environ | {key: str(value) for key, value in more.items()}))
    try:
        while any(rank.poll() is None for rank in started) and not any(rank.poll() for rank in started):
            time.sleep(0.1)
        time.sleep(1)  # the other rank's error may be the one that says why
    finally:
        for rank in started:
            rank.kill()
            rank.wait()
    if any(rank.returncode for rank in started):
        return {"failed": "".join((folder / f"output_{rank}").read_text()[-2000:] for rank in range(ranks))}
    result = json.loads(next(line for line in (folder / "output_0").read_text().splitlines() if line.startswith('{"losses"')))
    return {key: value for key, value in result.items() if value is not None}


def tessera_settings(folder, model, run, ranks, threads):
    """A job of ours that does what `train_here` does; the callers add what differs. `model`: a folder within `folder`."""
    return {
        "model": {"path": str(folder / model), "init": "pretrained"},
        "data": {"train": [str(folder / "tokens.bin")], "validation_fraction": 0, "seq_len": run["length"], "shuffle": False},
        "parallel": {"num_ranks": ranks, "threads_per_rank": threads, "placement": "full_shard"},
        "optimizer": {"max_grad_norm": 0},
        "schedule": {"type": "constant"},
        "train": {"steps": run["steps"], "global_batch": run["batch"], "run_dir": str(folder / "run"), "sample_tokens": 0},
        "checkpoint": {"at_end": False},
        "logging": {"tensorboard": False, "svg": False, "progress": "none"},
    }


def tessera_adamw(rate, betas, epsilon, decay):
    """torch's AdamW, which decays norms as well."""
    return {"learning_rate": rate, "beta1": betas[0], "beta2": betas[1], "eps": epsilon, "weight_decay": decay, "decay_norms_and_biases": True}


def tessera_figures(folder):
    """Of the run that ended in `folder`/run: what `train_here` gives, the summary, and the lines of metrics."""
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "run" / "summary.json").read_text())
    return {"losses": [line["loss"] for line in lines], "seconds": [line["step_seconds"] for line in lines],
            "peak_bytes": max(summary["peak_memory_bytes"])}, summary, lines


def machine_seconds():
    """Busy and all processor seconds of the machine."""
    numbers = [int(number) for number in pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return [seconds / os.sysconf("SC_CLK_TCK") for seconds in (sum(numbers) - numbers[3] - numbers[4], sum(numbers))]


def counted(measure):
    """What `measure` gives, with the processor seconds of its processes and the share of the machine that others took meanwhile."""
    busy, everything, own = *machine_seconds(), resource.getrusage(resource.RUSAGE_CHILDREN)
    result = measure()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy, everything = (now - before for now, before in zip(machine_seconds(), (busy, everything)))
    result["cpu_seconds"] = after.ru_utime + after.ru_stime - own.ru_utime - own.ru_stime
    result["others"] = max(0, busy - result["cpu_seconds"]) / everything
    return result


def summarise(run, name, results):
    """A contestant's rounds: medians of all that is a number, but the first round's losses and the most that others took."""
    row = {"contestant": name, "rounds": results}
    good = [result for result in results if "failed" not in result]
    if good:
        seconds = (statistics.median(result["seconds"][LEFT_OUT:]) for result in good)
        row["tokens_per_second"] = statistics.median(run["batch"] * run["length"] / each for each in seconds)
        row["best_tokens_per_second"] = run["batch"] * run["length"] / min(min(result["seconds"][LEFT_OUT:]) for result in good)
        for key in (key for key, value in good[0].items() if isinstance(value, (int, float))):
            median = statistics.median(result[key] for result in good)
            row |= {key.replace("_bytes", "_mib"): median / 2**20} if key.endswith("_bytes") else {key: median}
        row |= {"losses": good[0]["losses"], "others": max(result["others"] for result in good)}
    return row


def largest_difference(rows):
    """Of losses, from those of the first row that has some: how much, and whose."""
    listed = [row for row in rows if "losses" in row]
    return max(((max(abs(a - b) / b for a, b in zip(row["losses"], listed[0]["losses"], strict=True)), row["contestant"]) for row in listed),
               default=(0, ""))


def processor():
    return next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())


def report_head(script, sizes, packages):
    """Where figures come from: the script, the machine, the commit and versions."""
    commit = subprocess.run(["git", "-C", str(pathlib.Path(__file__).parent), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return {"what": f"tests/integration/{pathlib.Path(script).name} " + " ".join(sizes),
            "machine": {"processor": processor(), "cores": os.cpu_count(), "kernel": platform.release(),
                        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "load_before": os.getloadavg()},
            "commit": commit.stdout.strip(), "versions": {package.__name__: package.__version__ for package in packages}, "rows": []}
