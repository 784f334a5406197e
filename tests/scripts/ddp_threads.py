"""Other threads read parameters that the program kept, right after a step: new ones and older ones of every kind."""

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def kept():
    return sum((place + 1) * param.detach().abs().sum().item() for place, param in enumerate(parameters))


class Reader:
    """A thread that begins before there is a module, and reads whenever it is asked."""

    def __init__(self, wait):
        self.asked, self.answers = wait, queue.Queue()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while self.asked():
            self.answers.put(kept())


class Own(threading.Thread):
    """Thread with a run() of its own."""

    def run(self):
        self.score = kept()


dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
parameters = list(model.parameters())[::-1]

asked, event = queue.Queue(), threading.Event()
older_pool, older_executor = ThreadPool(1), ThreadPoolExecutor(1)
older_executor.submit(int).result()
by_queue, by_event = Reader(asked.get), Reader(lambda: event.wait() and not event.clear())

ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
pool, executor = ThreadPool(2), ThreadPoolExecutor(2)
flag = threading.Lock()
flag.acquire()
by_lock = Reader(flag.acquire)

torch.manual_seed(100 + dist.get_rank())
scores = []
for iteration in range(16):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(inputs), labels).backward()
    optimizer.step()
    kind = iteration % 8
    if kind == 0:
        scores.append(executor.submit(kept).result())
    elif kind == 1:
        scores.append(older_executor.submit(kept).result())
    elif kind == 2:
        scores.append(pool.apply(kept))
    elif kind == 3:
        scores.extend(older_pool.map(lambda _: kept(), range(2)))
    elif kind == 4:
        thread = Own()
        thread.start()
        thread.join()
        scores.append(thread.score)
    elif kind == 5:
        asked.put(True)
        scores.append(by_queue.answers.get())
    elif kind == 6:
        event.set()
        scores.append(by_event.answers.get())
    else:
        flag.release()
        scores.append(by_lock.answers.get())


def step():
    nn.functional.cross_entropy(ddp(inputs), labels).backward()
    optimizer.step()


trainer = threading.Thread(target=step)
trainer.start()
trainer.join()
scores.append(kept())
report(model, scores=scores)
