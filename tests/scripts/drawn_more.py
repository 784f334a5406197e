"""Random programs, continued: what people do less often to gradients, parameters and optimizers.

Rule of this file: as in drawn.py, ordinary code of a program over DistributedDataParallel or FSDP2. Whatever a program
raises here, it raises without Prophet, too, and it notes that.
"""

import io
import threading

import torch
from drawn import OPTIMIZERS, Program, local
from torch.optim import lr_scheduler
from ways import batch, loss_of

MORE_OPTIMIZERS = OPTIMIZERS | {
    "adadelta": lambda params: torch.optim.Adadelta(params, lr=0.5),
    "adamax": lambda params: torch.optim.Adamax(params, lr=1e-2),
    "averaged": lambda params: torch.optim.ASGD(params, lr=0.05, t0=2),
    "by tensor": lambda params: torch.optim.Adam(params, lr=torch.tensor(1e-2), weight_decay=1e-3),
    "maximal": lambda params: torch.optim.SGD(params, lr=0.02, momentum=0.9, dampening=0.1, maximize=True),
    "nadam": lambda params: torch.optim.NAdam(params, lr=1e-2, decoupled_weight_decay=True, weight_decay=1e-2),
    "nesterov": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.8, nesterov=True, foreach=True),
    "radam": lambda params: torch.optim.RAdam(params, lr=1e-2, foreach=True),
}

RATES = (
    lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=40),
    lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3),
    lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
    lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
    lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, total_iters=3), lr_scheduler.ExponentialLR(optimizer, 0.9)],
        milestones=[3],
    ),
)


class MoreProgram(Program):
    """A program that does more."""

    more_ways = (
        "from_better_inputs",
        "in_half_precision",
        "with_copies_saved",
        "sharply",
        "cleared_late",
        "in_closures",
    )
    more_ways += ("scaled", "with_anomalies_found", "stepped_between")
    cannot = ()
    """Those of them that torch does not have for the model."""
    more_between = ("decides", "rescales", "copies_gradients", "steps_by_hand", "fails_between")
    more_after = ("schedules", "handles_states", "moves_groups", "hooks_steps", "saves_all", "reads_in_a_thread")
    more_after += ("goes_back", "writes_all", "measures", "uses_functions")

    def __init__(self, *others):
        super().__init__(*others)
        self.plans, self.before, self.step_hooks, self.lent, self.scaler = [], None, [], [], None

    def total(self, tensors):
        return sum(local(tensor.detach()).double().square().sum().item() for tensor in tensors)

    def has(self):
        return [param for param in self.params if param.grad is not None]

    # Backward passes. Each returns the loss, if there is one to see.

    def backward(self):
        how = self.random.choice(("as before", "as before", *self.more_ways))
        if how in ("as before", *self.cannot):
            super().backward()
        elif (loss := getattr(self, how)()) is not None:
            self.seen.append(loss.item())

    def goes_back_over(self, loss):
        loss.backward()
        return loss

    def from_better_inputs(self):
        inputs, labels = batch()
        inputs.requires_grad_()
        (slope,) = torch.autograd.grad(loss_of(self.model, inputs, labels), inputs)
        return self.goes_back_over(loss_of(self.model, (inputs + 0.1 * slope.sign()).detach(), labels))

    def in_half_precision(self):
        with torch.autocast("cpu", torch.bfloat16):
            loss = self.loss()
        return self.goes_back_over(loss)

    def with_copies_saved(self):
        with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved.detach().clone(), lambda saved: saved):
            loss = self.loss()
        return self.goes_back_over(loss)

    def sharply(self):
        """Make the gradient of a place nearby."""
        self.loss().backward()
        with torch.no_grad():
            moved = [(local(param), local(param.grad) * 0.05) for param in self.has()]
            for param, by in moved:
                param.add_(by)
        self.clear()
        self.loss().backward()
        with torch.no_grad():
            for param, by in moved:
                param.sub_(by)

    def cleared_late(self):
        loss = self.loss()
        self.clear()
        return self.goes_back_over(loss)

    def in_closures(self):
        def again():
            with torch.enable_grad():
                for optimizer in self.optimizers:
                    optimizer.zero_grad()
                return self.goes_back_over(self.loss())

        for optimizer in self.optimizers:
            self.seen.append(optimizer.step(again).item())

    def scaled(self):
        self.scaler = self.scaler or torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        self.scaler.scale(self.loss()).backward()
        learn = [
            each for each in self.optimizers if any(p.grad is not None for g in each.param_groups for p in g["params"])
        ]
        for optimizer in learn:
            self.scaler.unscale_(optimizer)
        self.clips()
        for optimizer in learn:
            self.scaler.step(optimizer)
        if learn:
            self.scaler.update()

    def with_anomalies_found(self):
        with torch.autograd.set_detect_anomaly(True, check_nan=False):
            return self.goes_back_over(self.loss())

    def stepped_between(self):
        self.loss().backward()
        self.step()
        loss = self.loss()
        self.clear()
        return self.goes_back_over(loss)

    # Between backward and step.

    def decides(self):
        """Look at gradients, and go by what is there."""
        for param in self.has():
            grad = local(param.grad)
            if grad.numel() and (not torch.isfinite(grad).all() or grad.abs().max() > 0.05):
                grad.mul_(0.5)

    def rescales(self):
        how, has = self.random.randrange(5), self.has()
        if not has:
            return
        grads = [local(param.grad) for param in has]
        if how == 0:
            torch._foreach_clamp_max_(grads, 0.03)
        elif how == 1:
            norms = torch._foreach_norm(grads)
            torch._foreach_div_(grads, [norm + 1.0 for norm in norms])
        elif how == 2:
            for grad in grads:
                torch.mul(grad, 0.7, out=grad)
        elif how == 3:
            torch._foreach_copy_(grads, [grad.sign() * 0.01 for grad in grads])
        else:
            for param in has:  # decoupled decay in the gradient
                local(param.grad).add_(local(param.detach()), alpha=1e-3)

    def copies_gradients(self):
        """Put gradients aside, and back at another time."""
        if self.lent and self.random.random() < 0.7:
            for param, grad in zip(self.params, self.lent, strict=True):
                if grad is not None and param.grad is not None:
                    local(param.grad).add_(grad, alpha=0.5)
            self.lent = []
        else:
            self.lent = [None if param.grad is None else local(param.grad).clone() for param in self.params]

    def steps_by_hand(self):
        has = self.has()
        if has:
            with torch.no_grad():
                torch._foreach_add_([local(p) for p in has], [local(p.grad) for p in has], alpha=-0.01)

    def fails_between(self):
        param = self.one()
        try:
            self.see(lambda: param.grad.sum(), lambda: 1 / 0)
        except (AttributeError, ZeroDivisionError) as error:
            self.seen.append(float(len(type(error).__name__)))

    # After step.

    def schedules(self):
        if not self.plans:
            make = self.random.choice(RATES)
            try:
                self.plans = [(make(optimizer), optimizer) for optimizer in self.optimizers]
            except (ValueError, KeyError, RuntimeError):
                self.seen.append(-1.0)
        for plan, _ in self.plans:
            if isinstance(plan, lr_scheduler.ReduceLROnPlateau):
                plan.step(self.seen[-1] if self.seen else 1.0)
            else:
                plan.step()
        if self.random.random() < 0.2:
            self.plans = []

    def handles_states(self):
        how, optimizer = self.random.randrange(7), self.random.choice(self.optimizers)
        states = [state for state in optimizer.state.values() if state]
        moments = [(s, n) for s in states for n, v in s.items() if isinstance(v, torch.Tensor) and v.dim()]
        state, name = self.random.choice(moments) if moments else (None, None)
        if how == 0 and moments:
            local(state[name]).mul_(0.5)
        elif how == 1:
            optimizer.state.clear()
        elif how == 2:
            optimizer.state.pop(self.one(), None)
        elif how == 3 and moments:
            state[name] = state[name].clone()
        elif how == 4 and moments:
            self.kept.append(state[name])
        elif how == 5 and moments:
            torch._foreach_mul_([local(s[n]) for s, n in moments], 0.9)
        elif moments:
            self.see(*(lambda s=s, n=n: s[n] for s, n in moments))

    def moves_groups(self):
        how, optimizer = self.random.randrange(6), self.random.choice(self.optimizers)
        groups = optimizer.param_groups
        group = self.random.choice(groups)
        if how == 0 and len(group["params"]) > 1:
            params = list(group["params"])
            moved = params.pop(self.random.randrange(len(params)))
            group["params"] = params
            optimizer.add_param_group({"params": [moved]})
        elif how == 1:
            group["params"].reverse()
        elif how == 2:
            group["weight_decay"] = self.random.choice((0.0, 1e-2))
        elif how == 3 and len(groups) > 1:
            groups[0]["params"].extend(groups.pop()["params"])
        elif how == 4 and len(group["params"]) > 1:
            left = group["params"].pop()  # It does not learn any more, or in another optimizer.
            optimizer.state.pop(left, None)
            if self.random.random() < 0.5:
                self.optimizers.append(self.make([left]))
        else:
            group["lr"] = group["lr"] * 0.8

    def hooks_steps(self):
        if self.step_hooks and self.random.random() < 0.6:
            self.step_hooks.pop().remove()
            return
        how, param, optimizer = self.random.randrange(4), self.one(), self.random.choice(self.optimizers)

        def look(*_):
            self.seen.append(self.total([param] if param.grad is None else [param, param.grad]))

        def write(*_):
            with torch.no_grad():
                local(param).mul_(0.99)

        hook = (optimizer.register_step_pre_hook, optimizer.register_step_post_hook)[how % 2]
        self.step_hooks.append(hook(look if how < 2 else write))

    def saves_all(self):
        """Save parameters and optimizers to a file, or load what was saved before."""
        if self.before is not None and self.random.random() < 0.5:
            params, states = torch.load(io.BytesIO(self.before), weights_only=False)
            with torch.no_grad():
                for param, value in zip(self.params, params, strict=True):
                    local(param).copy_(value)
            for optimizer, state in zip(self.optimizers, states, strict=False):
                try:
                    optimizer.load_state_dict(state)
                except (ValueError, KeyError):
                    self.seen.append(-2.0)
            self.before = None
        else:
            file = io.BytesIO()
            states = [optimizer.state_dict() for optimizer in self.optimizers]
            torch.save(([local(param.detach()) for param in self.params], states), file)
            self.before = file.getvalue()

    def reads_in_a_thread(self):
        values, some = [], self.some()
        thread = threading.Thread(target=lambda: values.append(self.total(some)))
        thread.start()
        if self.random.random() < 0.5:
            thread.join()
        else:
            while not values:
                thread.join(0.001)
        self.seen += values

    def goes_back(self):
        """Compute with averages in place of the parameters, which come back then."""
        if not self.averages:
            return
        with torch.no_grad():
            now = [param.detach().clone() for param in self.params]
            torch._foreach_copy_([local(p) for p in self.params], [local(a) for a in self.averages])
            self.seen.append(self.total(self.params))
            for param, value in zip(self.params, now, strict=True):
                local(param).copy_(local(value))

    def writes_all(self):
        how = self.random.randrange(5)
        with torch.no_grad():
            if how == 0:
                torch._foreach_mul_([local(p) for p in self.params], 0.995)
            elif how == 1:
                for param in self.params:
                    local(param.data).clamp_(-0.5, 0.5)
            elif how == 2:
                for param in self.some():
                    local(param).copy_(local(param) * 0.98)
            elif how == 3:
                param = self.one()
                torch.mul(local(param), 0.97, out=local(param))
            else:
                param = local(self.one())
                param[:1] = param[:1] * 0.5

    def measures(self):
        how, some = self.random.randrange(5), [local(p.detach()) for p in self.some()]
        some = [each for each in some if each.numel()]
        if not some:
            return
        if how == 0:
            self.seen += [norm.item() for norm in torch._foreach_norm(some)]
        elif how == 1:
            self.seen.append(torch.cat([each.flatten() for each in some]).abs().max().item())
        elif how == 2:
            self.seen.append(float(sum(bool((each > 0.01).any()) for each in some)))
        elif how == 3:
            self.seen.append(sum(each.flatten()[0].item() for each in some))
        else:
            self.seen.append(sum(float(each.flatten().tolist()[-1]) for each in some))

    def uses_functions(self):
        param, how = local(self.one().detach()), self.random.randrange(3)
        if param.numel():
            if how == 0:
                self.seen.append(torch.func.grad(lambda p: p.square().sum())(param).sum().item())
            elif how == 1 and param.dim():
                self.seen.append(torch.func.vmap(lambda row: row.sum() * 2)(param).sum().item())
            else:
                self.seen.append(torch.func.jvp(torch.sin, (param,), (torch.ones_like(param),))[1].sum().item())

    def run(self):
        """Run, and let ranks that saw other things end with the same parameters."""
        saw = super().run()
        alone = [local(param).detach().clone() for param in self.params]
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        return saw, alone
