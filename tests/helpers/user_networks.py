"""Networks written by PyTorch users: a name, and a factory of a network and its inputs for a step."""

import copy
import functools
import itertools
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import einops
import torch
import torch.nn.functional as F
from einops.layers.torch import Rearrange
from torch import Tensor, nn

import tests.helpers.vision  # noqa: F401  transformers imports torchvision where it is installed

#: name -> () -> (network, inputs(step)).
NETWORKS: dict[str, Callable[[], tuple[nn.Module, Callable[[int], tuple[Any, ...]]]]] = {}


def net(f):
    """Register a network under its function's name."""
    NETWORKS[f.__name__] = f
    return f


def gen(step):
    return torch.Generator().manual_seed(step)


# ---- transformers by hand
class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        return self._norm(x.float()).type_as(x) * self.weight


def precompute_freqs_cis(dim, end, theta=10000.0):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: (dim // 2)].float() / dim))
    t = torch.arange(end, device=freqs.device, dtype=torch.float32)
    freqs = torch.outer(t, freqs)
    return torch.polar(torch.ones_like(freqs), freqs)


def apply_rotary_emb(xq, xk, freqs_cis):
    xq_ = torch.view_as_complex(xq.float().reshape(*xq.shape[:-1], -1, 2))
    xk_ = torch.view_as_complex(xk.float().reshape(*xk.shape[:-1], -1, 2))
    freqs_cis = freqs_cis.view(1, xq_.shape[1], 1, xq_.shape[-1])
    xq_out = torch.view_as_real(xq_ * freqs_cis).flatten(3)
    xk_out = torch.view_as_real(xk_ * freqs_cis).flatten(3)
    return xq_out.type_as(xq), xk_out.type_as(xk)


def repeat_kv(x, n_rep):
    bs, slen, h, d = x.shape
    if n_rep == 1:
        return x
    return x[:, :, :, None, :].expand(bs, slen, h, n_rep, d).reshape(bs, slen, h * n_rep, d)


@dataclass
class ModelArgs:
    dim: int = 32
    n_heads: int = 4
    n_kv_heads: int = 2
    vocab: int = 40
    max_len: int = 32


class LlamaAttention(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.n_rep = a.n_heads // a.n_kv_heads
        self.hd = a.dim // a.n_heads
        self.a = a
        self.wq = nn.Linear(a.dim, a.n_heads * self.hd, bias=False)
        self.wk = nn.Linear(a.dim, a.n_kv_heads * self.hd, bias=False)
        self.wv = nn.Linear(a.dim, a.n_kv_heads * self.hd, bias=False)
        self.wo = nn.Linear(a.n_heads * self.hd, a.dim, bias=False)

    def forward(self, x, freqs_cis, mask):
        b, s, _ = x.shape
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        q = q.view(b, s, self.a.n_heads, self.hd)
        k = k.view(b, s, self.a.n_kv_heads, self.hd)
        v = v.view(b, s, self.a.n_kv_heads, self.hd)
        q, k = apply_rotary_emb(q, k, freqs_cis)
        k, v = repeat_kv(k, self.n_rep), repeat_kv(v, self.n_rep)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(self.hd)
        if mask is not None:
            scores = scores + mask
        scores = F.softmax(scores.float(), dim=-1).type_as(q)
        return self.wo(torch.matmul(scores, v).transpose(1, 2).contiguous().view(b, s, -1))


class LlamaBlock(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.attention = LlamaAttention(a)
        self.n1 = RMSNorm(a.dim)
        self.n2 = RMSNorm(a.dim)
        h = int(2 * 4 * a.dim / 3)
        self.w1 = nn.Linear(a.dim, h, bias=False)
        self.w2 = nn.Linear(h, a.dim, bias=False)
        self.w3 = nn.Linear(a.dim, h, bias=False)

    def forward(self, x, f, m):
        h = x + self.attention(self.n1(x), f, m)
        y = self.n2(h)
        return h + self.w2(F.silu(self.w1(y)) * self.w3(y))


@net
def llama_complex_rotary():
    class Llama(nn.Module):
        def __init__(self, a):
            super().__init__()
            self.a = a
            self.tok = nn.Embedding(a.vocab, a.dim)
            self.layers = nn.ModuleList([LlamaBlock(a) for _ in range(2)])
            self.norm = RMSNorm(a.dim)
            self.output = nn.Linear(a.dim, a.vocab, bias=False)
            self.freqs_cis = precompute_freqs_cis(a.dim // a.n_heads, a.max_len * 2)

        def forward(self, tokens, start_pos: int = 0):
            _b, s = tokens.shape
            h = self.tok(tokens)
            self.freqs_cis = self.freqs_cis.to(h.device)
            f = self.freqs_cis[start_pos : start_pos + s]
            mask = None
            if s > 1:
                mask = torch.full((s, s), float("-inf"), device=tokens.device)
                mask = torch.triu(mask, diagonal=1)
                mask = torch.hstack([torch.zeros((s, start_pos), device=tokens.device), mask]).type_as(h)
            for layer in self.layers:
                h = layer(h, f, mask)
            return self.output(self.norm(h)).float()

    return Llama(ModelArgs()), lambda s: (torch.randint(0, 40, (2, 6), generator=gen(s)),)


def rotate_half(x):
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


@net
def gqa_sdpa_rope_cached_buffers():
    class Rotary(nn.Module):
        def __init__(self, d, base=10000):
            super().__init__()
            self.register_buffer(
                "inv_freq", 1.0 / (base ** (torch.arange(0, d, 2).float() / d)), persistent=False
            )
            self.seq_len_cached = 0
            self.cos_cached = None
            self.sin_cached = None

        def forward(self, x):
            s = x.shape[-2]
            if s != self.seq_len_cached:
                self.seq_len_cached = s
                t = torch.arange(s, device=x.device).type_as(self.inv_freq)
                freqs = torch.einsum("i,j->ij", t, self.inv_freq)
                emb = torch.cat((freqs, freqs), dim=-1)
                self.cos_cached = emb.cos()[None, None]
                self.sin_cached = emb.sin()[None, None]
            return self.cos_cached, self.sin_cached

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(32, 32 + 16 + 16)
            self.rot = Rotary(8)
            self.o = nn.Linear(32, 32)
            self.n = nn.RMSNorm(32)

        def forward(self, x):
            b, s, _d = x.shape
            q, k, v = self.qkv(self.n(x)).split([32, 16, 16], dim=-1)
            q = q.view(b, s, 4, 8).transpose(1, 2)
            k, v = (t.view(b, s, 2, 8).transpose(1, 2) for t in (k, v))
            c, sn = self.rot(q)
            q = q * c + rotate_half(q) * sn
            k = k * c + rotate_half(k) * sn
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return x + self.o(y.transpose(1, 2).flatten(2))

    return Net(), lambda s: (torch.randn(2, 7, 32, generator=gen(s)),)


@net
def kv_cache_decoding():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.Embedding(20, 16)
            self.qkv = nn.Linear(16, 48)
            self.head = nn.Linear(16, 20)
            self.register_buffer("ck", torch.zeros(2, 12, 16))
            self.register_buffer("cv", torch.zeros(2, 12, 16))

        def forward(self, ids):
            out = []
            ck, cv = self.ck.clone(), self.cv.clone()
            for t in range(ids.shape[1]):
                x = self.e(ids[:, t])
                q, k, v = self.qkv(x).chunk(3, -1)
                ck, cv = ck.clone(), cv.clone()
                ck[:, t] = k
                cv[:, t] = v
                a = torch.softmax((ck[:, : t + 1] * q[:, None]).sum(-1) / 4, -1)
                out.append(self.head((a[..., None] * cv[:, : t + 1]).sum(1)))
            self.ck.copy_(ck.detach())
            self.cv.copy_(cv.detach())
            return torch.stack(out, 1)

    return Net(), lambda s: (torch.randint(0, 20, (2, 5), generator=gen(s)),)


@net
def kv_cache_returned_tuples():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(16, 48)

        def forward(self, x, past: tuple[Tensor, Tensor] | None = None, use_cache: bool = True):
            q, k, v = self.qkv(x).chunk(3, -1)
            if past is not None:
                k = torch.cat([past[0], k], 1)
                v = torch.cat([past[1], v], 1)
            L, S = q.shape[1], k.shape[1]
            m = torch.ones(L, S, dtype=torch.bool, device=x.device).tril(diagonal=S - L)
            s = (q @ k.mT) * 16**-0.5
            s = s.masked_fill(m.logical_not(), torch.finfo(s.dtype).min)
            return (s.softmax(-1) @ v, (k, v) if use_cache else None)

    return Net(), lambda s: (
        torch.randn(2, 3, 16, generator=gen(s)),
        (torch.randn(2, 4, 16, generator=gen(s + 1)), torch.randn(2, 4, 16, generator=gen(s + 2))),
    )


@net
def alibi_attention():
    def slopes(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(16, 48, bias=False)
            self.register_buffer("slopes", torch.tensor(slopes(4)).view(4, 1, 1))
            self.o = nn.Linear(16, 16)

        def forward(self, x, lengths):
            B, T, C = x.size()
            q, k, v = [t.reshape(B, T, 4, 4).permute(0, 2, 1, 3) for t in self.qkv(x).tensor_split(3, dim=2)]
            pos = torch.arange(T, device=x.device)
            bias = -(pos[None, :] - pos[:, None]).abs()[None] * self.slopes
            pad = pos[None] >= lengths[:, None]
            s = torch.einsum("bhqd,bhkd->bhqk", q, k) / 2 + bias[None]
            s = s.masked_fill(pad[:, None, None, :], -torch.inf)
            y = torch.einsum("bhqk,bhkd->bqhd", F.softmax(s, -1, dtype=torch.float32), v).reshape(B, T, C)
            return self.o(y).masked_fill(pad.unsqueeze(-1), 0.0)

    return Net(), lambda s: (torch.randn(3, 6, 16, generator=gen(s)), torch.tensor([6, 4, 1 + s % 5]))


@net
def t5_relative_bias():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(8, 2)
            self.q = nn.Linear(8, 16, bias=False)
            self.k = nn.Linear(8, 16, bias=False)
            self.v = nn.Linear(8, 16, bias=False)
            self.o = nn.Linear(16, 8, bias=False)

        @staticmethod
        def bucket(rel, bidirectional=True, num_buckets=8, max_distance=20):
            ret = 0
            if bidirectional:
                num_buckets //= 2
                ret += (rel > 0).to(torch.long) * num_buckets
                rel = torch.abs(rel)
            else:
                rel = -torch.min(rel, torch.zeros_like(rel))
            max_exact = num_buckets // 2
            is_small = rel < max_exact
            large = max_exact + (
                torch.log(rel.float() / max_exact)
                / math.log(max_distance / max_exact)
                * (num_buckets - max_exact)
            ).to(torch.long)
            large = torch.min(large, torch.full_like(large, num_buckets - 1))
            ret += torch.where(is_small, rel, large)
            return ret

        def forward(self, x):
            B, T, _ = x.shape
            c = torch.arange(T, dtype=torch.long)[:, None]
            m = torch.arange(T, dtype=torch.long)[None, :]
            bias = self.table(self.bucket(m - c)).permute(2, 0, 1).unsqueeze(0)
            q, k, v = (f(x).view(B, T, 2, 8).transpose(1, 2) for f in (self.q, self.k, self.v))
            s = torch.matmul(q, k.transpose(3, 2))
            s += bias
            a = F.softmax(s.float(), dim=-1).type_as(s)
            return x + self.o((a @ v).transpose(1, 2).contiguous().view(B, -1, 16))

    return Net(), lambda s: (torch.randn(2, 9, 8, generator=gen(s)),)


@net
def swin_like_roll_windows():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = 4
            self.table = nn.Parameter(torch.zeros((2 * 4 - 1) ** 2, 2))
            nn.init.trunc_normal_(self.table, std=0.02)
            co = torch.stack(torch.meshgrid([torch.arange(4), torch.arange(4)], indexing="ij"))
            cf = torch.flatten(co, 1)
            rel = (cf[:, :, None] - cf[:, None, :]).permute(1, 2, 0).contiguous()
            rel[:, :, 0] += 3
            rel[:, :, 1] += 3
            rel[:, :, 0] *= 7
            self.register_buffer("index", rel.sum(-1))
            self.qkv = nn.Linear(8, 24)
            self.p = nn.Linear(8, 8)

        def forward(self, x):
            B, H, W, C = x.shape
            w = self.w
            mask = torch.zeros((1, H, W, 1))
            cnt = 0
            for h in (slice(0, -w), slice(-w, -2), slice(-2, None)):
                for v in (slice(0, -w), slice(-w, -2), slice(-2, None)):
                    mask[:, h, v, :] = cnt
                    cnt += 1

            def part(t):
                return (
                    t.view(t.shape[0], H // w, w, W // w, w, -1)
                    .permute(0, 1, 3, 2, 4, 5)
                    .contiguous()
                    .view(-1, w * w, t.shape[-1])
                )

            mw = part(mask).squeeze(-1)
            am = mw.unsqueeze(1) - mw.unsqueeze(2)
            am = am.masked_fill(am != 0, (-100.0)).masked_fill(am == 0, 0.0)
            y = part(torch.roll(x, shifts=(-2, -2), dims=(1, 2)))
            q, k, v = self.qkv(y).reshape(y.shape[0], w * w, 3, 2, 4).permute(2, 0, 3, 1, 4)
            a = (q * 0.5) @ k.transpose(-2, -1) + self.table[self.index.view(-1)].view(
                w * w, w * w, -1
            ).permute(2, 0, 1).contiguous().unsqueeze(0)
            nW = am.shape[0]
            a = (
                (a.view(-1, nW, 2, w * w, w * w) + am.unsqueeze(1).unsqueeze(0))
                .view(-1, 2, w * w, w * w)
                .softmax(-1)
            )
            y = (
                self.p((a @ v).transpose(1, 2).reshape(-1, w * w, C))
                .view(B, H // w, W // w, w, w, -1)
                .permute(0, 1, 3, 2, 4, 5)
                .reshape(B, H, W, -1)
            )
            return x + torch.roll(y, shifts=(2, 2), dims=(1, 2))

    return Net(), lambda s: (torch.randn(2, 8, 8, 8, generator=gen(s)),)


# ---- MoE
@net
def moe_topk_scatter():
    class Net(nn.Module):
        def __init__(self, E=4, k=2):
            super().__init__()
            self.E, self.k = E, k
            self.gate = nn.Linear(8, E)
            self.w1 = nn.Parameter(torch.randn(E, 8, 16) * 0.3)
            self.w2 = nn.Parameter(torch.randn(E, 16, 8) * 0.3)

        def forward(self, x):
            flat = x.reshape(-1, x.shape[-1])
            logits = self.gate(flat)
            w, idx = torch.topk(logits, self.k, dim=-1)
            gates = torch.zeros_like(logits).scatter(-1, idx, F.softmax(w, dim=-1))
            h = torch.einsum("nd,edh->neh", flat, self.w1)
            y = torch.einsum("neh,ehd->ned", F.gelu(h, approximate="tanh"), self.w2)
            out = (y * gates.unsqueeze(-1)).sum(1).view_as(x)
            load = F.one_hot(idx[:, 0], self.E).float().mean(0)
            imp = logits.softmax(-1).mean(0)
            return out, self.E * (load * imp).sum()

    return Net(), lambda s: (torch.randn(2, 5, 8, generator=gen(s)),)


@net
def moe_capacity_dispatch():
    class Net(nn.Module):
        def __init__(self, E=3):
            super().__init__()
            self.E = E
            self.gate = nn.Linear(8, E, bias=False)
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(8, 12), nn.SiLU(), nn.Linear(12, 8)) for _ in range(E)
            )

        def forward(self, x):
            n, _d = x.shape
            cap = max(1, int(1.25 * n / self.E))
            p = self.gate(x).softmax(-1)
            top, idx = p.max(-1)
            oh = F.one_hot(idx, self.E)
            pos = (torch.cumsum(oh, 0) * oh).sum(-1) - 1
            keep = pos < cap
            disp = (
                oh.to(x.dtype)[:, :, None]
                * F.one_hot(pos.clamp(0, cap - 1), cap).to(x.dtype)[:, None, :]
                * keep[:, None, None]
            )
            inp = torch.einsum("nec,nd->ecd", disp, x)
            outs = torch.stack([e(i) for e, i in zip(self.experts, inp.unbind(0), strict=False)])
            y = torch.einsum("nec,ecd->nd", disp * top[:, None, None], outs)
            return torch.where(keep[:, None], y, x)

    return Net(), lambda s: (torch.randn(10, 8, generator=gen(s)),)


@net
def moe_index_add_loop():
    class Net(nn.Module):
        def __init__(self, E=3):
            super().__init__()
            self.E = E
            self.gate = nn.Linear(8, E, bias=False)
            self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(E))

        def forward(self, x):
            w, sel = torch.topk(self.gate(x).softmax(-1, dtype=torch.float), 2, dim=-1)
            w = w / w.sum(-1, keepdim=True)
            final = torch.zeros_like(x)
            for e in range(self.E):
                weight = torch.where(sel == e, w, torch.zeros_like(w)).sum(-1, keepdim=True)
                final = final + self.experts[e](x) * weight
            return final

    return Net(), lambda s: (torch.randn(10, 8, generator=gen(s)),)


# ---- graphs
@net
def gcn_index_add():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.l1 = nn.Linear(5, 8)
            self.l2 = nn.Linear(8, 3)

        def conv(self, x, src, dst, n):
            deg = torch.zeros(n, dtype=x.dtype).index_add(0, dst, torch.ones_like(dst, dtype=x.dtype))
            norm = deg.clamp(min=1).pow(-0.5)
            m = x[src] * (norm[src] * norm[dst]).unsqueeze(-1)
            return torch.zeros(n, x.size(1), dtype=x.dtype).index_add_(0, dst, m) + x

        def forward(self, x, edge_index):
            src, dst = edge_index
            x = F.relu(self.conv(self.l1(x), src, dst, x.size(0)))
            return F.log_softmax(self.conv(self.l2(x), src, dst, x.size(0)), 1)

    return Net(), lambda s: (
        torch.randn(7, 5, generator=gen(s)),
        torch.randint(0, 7, (2, 15), generator=gen(s)),
    )


@net
def gat_scatter_reduce():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(5, 8, bias=False)
            self.a_s = nn.Parameter(torch.randn(1, 2, 4))
            self.a_d = nn.Parameter(torch.randn(1, 2, 4))

        def forward(self, x, ei):
            n = x.shape[0]
            h = self.lin(x).view(n, 2, 4)
            s, d = ei[0], ei[1]
            e = F.leaky_relu((h * self.a_s).sum(-1)[s] + (h * self.a_d).sum(-1)[d], 0.2)
            idx = d.unsqueeze(-1).expand_as(e)
            m = torch.full((n, 2), float("-inf")).scatter_reduce(
                0, idx, e.detach(), reduce="amax", include_self=False
            )
            a = (e - m[d]).exp()
            den = torch.zeros(n, 2).scatter_add(0, idx, a) + 1e-16
            a = a / den[d]
            out = torch.zeros(n, 2, 4).scatter_add(
                0, d.view(-1, 1, 1).expand(-1, 2, 4), h[s] * a.unsqueeze(-1)
            )
            mean = torch.zeros(n, 8).scatter_reduce(
                0, d[:, None].expand(-1, 8), h.flatten(1)[s], reduce="mean"
            )
            return F.elu(out.flatten(1)) + mean

    return Net(), lambda s: (
        torch.randn(7, 5, generator=gen(s)),
        torch.randint(0, 7, (2, 15), generator=gen(s)),
    )


@net
def graph_pool_batch_vector():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.mlp = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
            self.head = nn.Linear(16, 2)

        def forward(self, x, adj, batch):
            h = self.mlp(x + torch.sparse.mm(adj, x) if adj.is_sparse else x + adj @ x)
            g = 3
            s = h.new_zeros(g, 8).index_add_(0, batch, h)
            c = torch.bincount(batch, minlength=g).clamp(min=1).unsqueeze(1)
            mx = h.new_full((g, 8), -1e9).index_reduce_(0, batch, h, "amax")
            return self.head(torch.cat([s / c, mx], -1))

    return Net(), lambda s: (
        torch.randn(9, 4, generator=gen(s)),
        (torch.rand(9, 9, generator=gen(s)) > 0.6).float(),
        torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2]),
    )


# ---- mixers
@net
def mlp_mixer():
    class Block(nn.Module):
        def __init__(self, t, c):
            super().__init__()
            self.n1 = nn.LayerNorm(c)
            self.n2 = nn.LayerNorm(c)
            self.t = nn.Sequential(nn.Linear(t, 2 * t), nn.GELU(), nn.Linear(2 * t, t))
            self.c = nn.Sequential(nn.Linear(c, 2 * c), nn.GELU(), nn.Linear(2 * c, c))

        def forward(self, x):
            x = x + self.t(self.n1(x).transpose(1, 2)).transpose(1, 2)
            return x + self.c(self.n2(x))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 4, 4)
            self.blocks = nn.Sequential(*[Block(4, 8) for _ in range(2)])
            self.head = nn.Linear(8, 5)

        def forward(self, x):
            return self.head(self.blocks(self.stem(x).flatten(2).mT).mean(dim=1))

    return Net(), lambda s: (torch.randn(2, 3, 8, 8, generator=gen(s)),)


@net
def gmlp():
    class SGU(nn.Module):
        def __init__(self, d, n):
            super().__init__()
            self.norm = nn.LayerNorm(d)
            self.proj = nn.Conv1d(n, n, 1)
            nn.init.constant_(self.proj.bias, 1.0)
            nn.init.uniform_(self.proj.weight, -1e-2, 1e-2)

        def forward(self, x):
            u, v = x.chunk(2, dim=-1)
            return u * self.proj(self.norm(v))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.n = nn.LayerNorm(8)
            self.i = nn.Linear(8, 32)
            self.g = SGU(16, 6)
            self.o = nn.Linear(16, 8)

        def forward(self, x):
            return x + self.o(self.g(F.gelu(self.i(self.n(x)))))

    return Net(), lambda s: (torch.randn(2, 6, 8, generator=gen(s)),)


@net
def perceiver():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lat = nn.Parameter(torch.randn(4, 16))
            self.cross = nn.MultiheadAttention(16, 2, kdim=10, vdim=10, batch_first=True)
            self.selfa = nn.TransformerEncoderLayer(
                16, 2, 32, 0.0, batch_first=True, norm_first=True, activation=F.gelu
            )
            self.dec = nn.MultiheadAttention(16, 2, batch_first=True)
            self.q = nn.Parameter(torch.randn(1, 3, 16))

        def forward(self, x, mask=None):
            b = x.shape[0]
            f = torch.stack(
                [torch.sin(math.pi * k * torch.linspace(-1, 1, x.shape[1])) for k in (1, 2, 4, 8)], -1
            )
            x = torch.cat([x, f.expand(b, -1, -1)], -1)
            z, w = self.cross(
                self.lat.expand(b, -1, -1),
                x,
                x,
                key_padding_mask=mask,
                need_weights=True,
                average_attn_weights=False,
            )
            for _ in range(2):
                z = self.selfa(z)
            return self.dec(self.q.repeat(b, 1, 1), z, z, need_weights=False)[0], w

    return Net(), lambda s: (
        torch.randn(2, 9, 6, generator=gen(s)),
        torch.arange(9)[None] >= torch.tensor([[9], [5]]),
    )


@net
def capsules():
    def squash(x, dim=-1):
        n = torch.norm(x, dim=dim, keepdim=True)
        return n**2 / (1 + n**2) * x / (n + 1e-8)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 8, 3)
            self.prim = nn.Conv2d(8, 16, 3, 2)
            self.W = nn.Parameter(0.1 * torch.randn(1, 5, 36, 6, 4))

        def forward(self, x):
            u = squash(self.prim(F.relu(self.conv(x))).view(x.size(0), 36, 4))
            u_hat = torch.squeeze(torch.matmul(self.W, u[:, None, :, :, None]), dim=-1)
            t = u_hat.detach()
            b = torch.zeros(x.size(0), 5, 36)
            for i in range(3):
                c = F.softmax(b, dim=1)
                if i == 2:
                    v = squash(torch.sum(c[..., None] * u_hat, dim=-2, keepdim=True))
                else:
                    v = squash(torch.sum(c[..., None] * t, dim=-2, keepdim=True))
                    b = b + torch.sum(v * t, dim=-1)
            return v.squeeze(-2), v.squeeze(-2).norm(dim=-1)

    return Net(), lambda s: (torch.randn(2, 1, 10, 10, generator=gen(s)),)


@net
def neural_ode_rk4():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 4))
            self.out = nn.Linear(4, 2)

        def rhs(self, t, y):
            return self.f(torch.cat([y, t.expand(y.shape[0], 1)], -1))

        def forward(self, y):
            ts = torch.linspace(0.0, 1.0, 5)
            traj = [y]
            for t0, t1 in itertools.pairwise(ts):
                h = t1 - t0
                k1 = self.rhs(t0, y)
                k2 = self.rhs(t0 + h / 2, y + h / 2 * k1)
                k3 = self.rhs(t0 + h / 2, y + h / 2 * k2)
                k4 = self.rhs(t1, y + h * k3)
                y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
                traj.append(y)
            return self.out(torch.stack(traj))

    return Net(), lambda s: (torch.randn(3, 4, generator=gen(s)),)


@net
def wavenet():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp = nn.Conv1d(1, 8, 1)
            self.f = nn.ModuleList()
            self.r = nn.ModuleList()
            self.s = nn.ModuleList()
            self.d = [1, 2, 4]
            for d in self.d:
                self.f.append(nn.utils.parametrizations.weight_norm(nn.Conv1d(8, 16, 2, dilation=d)))
                self.r.append(nn.Conv1d(8, 8, 1))
                self.s.append(nn.Conv1d(8, 6, 1))
            self.e = nn.Conv1d(6, 10, 1)

        def forward(self, x):
            x = self.inp(x)
            skip = 0
            for f, r, s, d in zip(self.f, self.r, self.s, self.d, strict=False):
                a, b = torch.split(f(F.pad(x, (d, 0))), 8, dim=1)
                z = torch.tanh(a) * torch.sigmoid(b)
                skip = skip + s(z)
                x = r(z) + x
            return self.e(F.relu(skip))

    return Net(), lambda s: (torch.randn(2, 1, 20, generator=gen(s)),)


@net
def tcn_chomp_old_weight_norm():
    from torch.nn.utils import weight_norm

    class Chomp(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.n = n

        def forward(self, x):
            return x[:, :, : -self.n].contiguous()

    class TB(nn.Module):
        def __init__(self, i, o, d):
            super().__init__()
            p = 2 * d
            import warnings

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.c1 = weight_norm(nn.Conv1d(i, o, 3, padding=p, dilation=d))
                self.c2 = weight_norm(nn.Conv1d(o, o, 3, padding=p, dilation=d))
            self.net = nn.Sequential(self.c1, Chomp(p), nn.ReLU(), self.c2, Chomp(p), nn.ReLU())
            self.down = nn.Conv1d(i, o, 1) if i != o else None

        def forward(self, x):
            out = self.net(x)
            return F.relu(out + (x if self.down is None else self.down(x)))

    return nn.Sequential(TB(3, 6, 1), TB(6, 6, 2)), lambda s: (torch.randn(2, 3, 14, generator=gen(s)),)


@net
def conv_lstm():
    class Cell(nn.Module):
        def __init__(self, i, h):
            super().__init__()
            self.h = h
            self.conv = nn.Conv2d(i + h, 4 * h, 3, padding=1)

        def forward(self, x, state):
            h, c = state
            i, f, o, g = torch.split(self.conv(torch.cat([x, h], dim=1)), self.h, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            return h, c

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells = nn.ModuleList([Cell(2, 4), Cell(4, 3)])
            self.out = nn.Conv2d(3, 2, 1)

        def forward(self, x):
            b, t, _, h, w = x.shape
            states = [
                (torch.zeros(b, c.h, h, w, device=self.out.weight.device), torch.zeros(b, c.h, h, w))
                for c in self.cells
            ]
            outs = []
            for k in range(t):
                y = x[:, k]
                for i, c in enumerate(self.cells):
                    states[i] = c(y, states[i])
                    y = states[i][0]
                outs.append(self.out(y))
            return torch.stack(outs, dim=1), states[-1]

    return Net(), lambda s: (torch.randn(2, 3, 2, 6, 6, generator=gen(s)),)


@net
def spatial_transformer_deformable():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.loc = nn.Sequential(
                nn.Conv2d(2, 4, 3),
                nn.MaxPool2d(2),
                nn.ReLU(True),
                nn.AdaptiveAvgPool2d(1),
                nn.Flatten(),
                nn.Linear(4, 6),
            )
            self.loc[-1].weight.data.mul_(0.1)
            self.loc[-1].bias.data.copy_(torch.tensor([1, 0, 0, 0, 1, 0], dtype=torch.float))
            self.off = nn.Conv2d(2, 18, 3, padding=1)
            self.w = nn.Parameter(torch.randn(3, 2, 9) * 0.2)

        def forward(self, x):
            theta = self.loc(x).view(-1, 2, 3)
            g = F.affine_grid(theta, x.size(), align_corners=False)
            x = F.grid_sample(x, g, align_corners=False, padding_mode="border")
            B, _C, H, W = x.shape
            off = torch.tanh(self.off(x)).view(B, 9, 2, H, W)
            ys, xs = torch.meshgrid(
                torch.arange(H, dtype=x.dtype), torch.arange(W, dtype=x.dtype), indexing="ij"
            )
            cols = []
            for k in range(9):
                dy, dx = k // 3 - 1, k % 3 - 1
                gy = (ys + dy + off[:, k, 0]) / (H - 1) * 2 - 1
                gx = (xs + dx + off[:, k, 1]) / (W - 1) * 2 - 1
                cols.append(
                    F.grid_sample(
                        x,
                        torch.stack((gx, gy), -1),
                        mode="bilinear",
                        padding_mode="zeros",
                        align_corners=True,
                    )
                )
            return torch.einsum("bckhw,ock->bohw", torch.stack(cols, 2), self.w)

    return Net(), lambda s: (torch.randn(2, 2, 7, 6, generator=gen(s)),)


@net
def unet_diffusion():
    class TimeEmb(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.d = d

        def forward(self, t):
            half = self.d // 2
            e = math.log(10000) / (half - 1)
            e = torch.exp(torch.arange(half, device=t.device) * -e)
            e = t[:, None] * e[None, :]
            return torch.cat((e.sin(), e.cos()), dim=-1)

    class Res(nn.Module):
        def __init__(self, i, o):
            super().__init__()
            self.n1 = nn.GroupNorm(2, i)
            self.c1 = nn.Conv2d(i, o, 3, padding=1)
            self.t = nn.Linear(16, o * 2)
            self.n2 = nn.GroupNorm(2, o)
            self.c2 = nn.Conv2d(o, o, 3, padding=1)
            self.s = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

        def forward(self, x, t):
            h = self.c1(F.silu(self.n1(x)))
            sc, sh = self.t(F.silu(t))[:, :, None, None].chunk(2, 1)
            h = self.n2(h) * (1 + sc) + sh
            return self.c2(F.silu(h)) + self.s(x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.te = nn.Sequential(TimeEmb(8), nn.Linear(8, 16), nn.SiLU())
            self.inc = nn.Conv2d(1, 4, 3, padding=1)
            self.d1 = Res(4, 4)
            self.down = nn.Conv2d(4, 8, 4, 2, 1)
            self.mid = Res(8, 8)
            self.qkv = nn.Conv1d(8, 24, 1)
            self.up = nn.ConvTranspose2d(8, 4, 4, 2, 1)
            self.u1 = Res(8, 4)
            self.out = nn.Conv2d(4, 1, 1)
            betas = torch.linspace(1e-4, 0.02, 50)
            self.register_buffer("ac", torch.cumprod(1 - betas, 0))

        def q_sample(self, x, t, n):
            a = self.ac.gather(-1, t).reshape(-1, 1, 1, 1)
            return a.sqrt() * x + (1 - a).sqrt() * n

        def forward(self, x, t, noise):
            xt = self.q_sample(x, t, noise)
            e = self.te(t)
            h = self.d1(self.inc(xt), e)
            m = self.mid(self.down(h), e)
            b, c, _hh, _w = m.shape
            q, k, v = self.qkv(m.view(b, c, -1)).view(b, 3, c, -1).unbind(1)
            m = m + torch.bmm(
                v, torch.softmax(torch.bmm(q.transpose(1, 2), k) * c**-0.5, -1).transpose(1, 2)
            ).view_as(m)
            p = self.out(self.u1(torch.cat([self.up(m), h], 1), e))
            return F.smooth_l1_loss(p, noise, reduction="none").mean((1, 2, 3)), p

    return Net(), lambda s: (
        torch.randn(2, 1, 8, 8, generator=gen(s)),
        torch.randint(0, 50, (2,), generator=gen(s)),
        torch.randn(2, 1, 8, 8, generator=gen(s + 9)),
    )


@net
def vae_given_noise():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.Linear(12, 16)
            self.mu = nn.Linear(16, 4)
            self.lv = nn.Linear(16, 4)
            self.d = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 12))

        def forward(self, x, eps):
            h = F.relu(self.e(x.view(-1, 12)))
            mu, lv = self.mu(h), self.lv(h)
            z = mu + torch.exp(0.5 * lv) * eps
            r = torch.sigmoid(self.d(z))
            bce = F.binary_cross_entropy(r, x.view(-1, 12), reduction="sum")
            kld = -0.5 * torch.sum(1 + lv - mu.pow(2) - lv.exp())
            q = torch.distributions.Normal(mu, torch.exp(0.5 * lv))
            p = torch.distributions.Normal(torch.zeros_like(mu), torch.ones_like(lv))
            return (bce + kld) / x.shape[0], torch.distributions.kl_divergence(q, p).sum(-1)

    return Net(), lambda s: (torch.rand(5, 3, 4, generator=gen(s)), torch.randn(5, 4, generator=gen(s + 3)))


@net
def vq_vae_straight_through():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.Conv2d(3, 4, 3, 2, 1)
            self.cb = nn.Embedding(8, 4)
            self.d = nn.ConvTranspose2d(4, 3, 4, 2, 1)
            self.register_buffer("usage", torch.zeros(8))

        def forward(self, x):
            z = self.e(x)
            f = z.permute(0, 2, 3, 1).reshape(-1, 4)
            d = f.pow(2).sum(1, keepdim=True) - 2 * f @ self.cb.weight.t() + self.cb.weight.pow(2).sum(1)
            i = torch.argmin(d, dim=1)
            if self.training:
                with torch.no_grad():
                    n = F.one_hot(i, 8).type_as(f).sum(0)
                    self.usage.data.mul_(0.9).add_(n, alpha=0.1)
            q = self.cb(i).view(z.shape[0], z.shape[2], z.shape[3], 4).permute(0, 3, 1, 2)
            loss = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
            q = z + (q - z).detach()
            return self.d(q), loss, i

    return Net(), lambda s: (torch.randn(2, 3, 8, 8, generator=gen(s)),)


@net
def seq2seq_packed_teacher_forcing():
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    class Attn(nn.Module):
        def __init__(self):
            super().__init__()
            self.W = nn.Linear(16, 8)
            self.v = nn.Linear(8, 1, bias=False)

        def forward(self, h, enc, mask):
            e = self.v(
                torch.tanh(self.W(torch.cat((h.unsqueeze(1).repeat(1, enc.shape[1], 1), enc), 2)))
            ).squeeze(2)
            return F.softmax(e.masked_fill(mask == 0, -1e10), 1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.es = nn.Embedding(15, 6, padding_idx=0)
            self.enc = nn.GRU(6, 8, batch_first=True)
            self.et = nn.Embedding(12, 6)
            self.at = Attn()
            self.dec = nn.GRUCell(14, 8)
            self.out = nn.Linear(8, 12)

        def forward(self, src, lens, tgt):
            p = pack_padded_sequence(self.es(src), lens, batch_first=True, enforce_sorted=False)
            o, h = self.enc(p)
            o, _ = pad_packed_sequence(o, batch_first=True, total_length=src.size(1))
            h = h.squeeze(0)
            mask = src != 0
            outs = []
            inp = tgt[:, 0]
            for t in range(1, tgt.size(1)):
                a = self.at(h, o, mask)
                c = torch.bmm(a.unsqueeze(1), o).squeeze(1)
                h = self.dec(torch.cat([self.et(inp), c], 1), h)
                y = self.out(h)
                outs.append(y)
                inp = tgt[:, t] if t % 2 else y.argmax(1)
            return torch.stack(outs, 1)

    def mk(s):
        lens = torch.tensor([5, 3, 4])
        src = torch.randint(1, 15, (3, 5), generator=gen(s)) * (torch.arange(5)[None] < lens[:, None])
        return src, lens, torch.randint(0, 12, (3, 5), generator=gen(s + 1))

    return Net(), mk


@net
def actor_critic_distributions():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 16), nn.Tanh())
            self.pi = nn.Linear(16, 3)
            self.v = nn.Linear(16, 1)
            self.ls = nn.Parameter(torch.zeros(2))
            self.mu = nn.Linear(16, 2)
            for m in self.modules():
                if isinstance(m, nn.Linear):
                    nn.init.orthogonal_(m.weight, math.sqrt(2))
                    nn.init.zeros_(m.bias)

        def forward(self, obs, act, cont, adv, old):
            h = self.body(obs)
            d = torch.distributions.Categorical(logits=self.pi(h))
            lp = d.log_prob(act)
            ent = d.entropy().mean()
            r = torch.exp(lp - old)
            pl = -torch.min(r * adv, torch.clamp(r, 0.8, 1.2) * adv).mean()
            n = torch.distributions.Normal(self.mu(h), self.ls.exp().expand_as(self.mu(h)))
            cl = n.log_prob(cont).sum(-1)
            return {"pl": pl, "v": self.v(h).squeeze(-1), "ent": ent, "cl": cl, "ent2": n.entropy().sum(-1)}

    return Net(), lambda s: (
        torch.randn(6, 4, generator=gen(s)),
        torch.randint(0, 3, (6,), generator=gen(s)),
        torch.randn(6, 2, generator=gen(s)),
        torch.randn(6, generator=gen(s)),
        -torch.rand(6, generator=gen(s)),
    )


@net
def siamese_triplet_contrastive():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.Conv2d(1, 4, 3), nn.PReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 8)
            )
            self.t = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

        def embed(self, x):
            return F.normalize(self.net(x), p=2, dim=1)

        def forward(self, a, p, n):
            ea, ep, en = map(self.embed, (a, p, n))
            tr = F.triplet_margin_loss(ea, ep, en, margin=0.5)
            log = self.t.exp() * ea @ ep.t()
            lab = torch.arange(a.size(0))
            clip = (F.cross_entropy(log, lab) + F.cross_entropy(log.t(), lab)) / 2
            d = F.pairwise_distance(ea, en)
            z = torch.cat([ea, ep])
            sim = F.cosine_similarity(z.unsqueeze(1), z.unsqueeze(0), dim=2)
            sim.fill_diagonal_(-9e15)
            return (
                tr,
                clip,
                torch.clamp(1 - d, min=0).pow(2).mean(),
                torch.logsumexp(sim / 0.5, -1),
                torch.cdist(ea, en),
            )

    return Net(), lambda s: tuple(torch.randn(4, 1, 8, 8, generator=gen(3 * s + i)) for i in range(3))


@net
def se_cbam():
    class SE(nn.Module):
        def __init__(self, c, r=2):
            super().__init__()
            self.fc = nn.Sequential(
                nn.Linear(c, c // r, bias=False),
                nn.ReLU(inplace=True),
                nn.Linear(c // r, c, bias=False),
                nn.Sigmoid(),
            )

        def forward(self, x):
            b, c, _, _ = x.size()
            y = F.adaptive_avg_pool2d(x, 1).view(b, c)
            y = self.fc(y).view(b, c, 1, 1)
            return x * y.expand_as(x)

    class CBAM(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.mlp = nn.Sequential(nn.Conv2d(c, c // 2, 1), nn.ReLU(), nn.Conv2d(c // 2, c, 1))
            self.sp = nn.Conv2d(2, 1, 7, padding=3)

        def forward(self, x):
            x = x * torch.sigmoid(
                self.mlp(F.adaptive_avg_pool2d(x, 1)) + self.mlp(F.adaptive_max_pool2d(x, 1))
            )
            s = torch.cat([x.mean(1, keepdim=True), x.max(1, keepdim=True)[0]], 1)
            return x * torch.sigmoid(self.sp(s))

    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(3, 8, 3, padding="same", padding_mode="reflect"),
            bn=nn.BatchNorm2d(8),
            act=nn.Hardswish(),
            se=SE(8),
            cbam=CBAM(8),
            pool=nn.AdaptiveMaxPool2d((2, 3)),
            inorm=nn.InstanceNorm2d(8, affine=True),
            lrn=nn.LocalResponseNorm(3),
            ps=nn.PixelShuffle(2),
        )
    ), lambda s: (torch.randn(2, 3, 9, 9, generator=gen(s)),)


@net
def gan_with_spectral_norm():
    from torch.nn.utils import spectral_norm

    class D(nn.Module):
        def __init__(self):
            super().__init__()
            self.c = spectral_norm(nn.Conv2d(1, 4, 4, 2, 1))
            self.l = spectral_norm(nn.Linear(64, 1))
            self.e = nn.Embedding(3, 64)

        def forward(self, x, y):
            h = F.leaky_relu(self.c(x), 0.2).flatten(1)
            return self.l(h).squeeze(1) + (self.e(y) * h).sum(1)

    return D(), lambda s: (torch.randn(3, 1, 8, 8, generator=gen(s)), torch.tensor([0, 2, 1]))


@net
def fourier_features_fft_mixing():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.n = nn.LayerNorm(8)
            self.ff = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
            self.register_buffer("B", torch.randn(2, 4))
            self.w = nn.Parameter(torch.randn(3, 2, 2, 2) * 0.3)

        def forward(self, x):
            f = torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real
            y = self.n(x + f)
            y = y + self.ff(y)
            X = torch.fft.rfft(x, dim=1)
            g = torch.zeros_like(X)
            g[:, :3] = X[:, :3] * 0.5
            return (
                y + torch.fft.irfft(g, n=x.size(1), dim=1),
                torch.fft.rfft2(x, norm="ortho").abs(),
                torch.fft.fftshift(x, dim=1),
            )

    return Net(), lambda s: (torch.randn(2, 8, 8, generator=gen(s)),)


@net
def parametrize_symmetric():
    import torch.nn.utils.parametrize as P

    class Sym(nn.Module):
        def forward(self, X):
            return X.triu() + X.triu(1).transpose(-1, -2)

    class Exp(nn.Module):
        def forward(self, X):
            return F.softplus(X) / X.shape[0]

        def right_inverse(self, A):
            return torch.log(torch.expm1(A.abs() * A.shape[0] + 0.01))

    n = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3))
    P.register_parametrization(n[0], "weight", Sym())
    P.register_parametrization(n[2], "weight", Exp())
    return n, lambda s: (torch.randn(4, 5, generator=gen(s)),)


@net
def checkpoint_reentrant_and_not():
    from torch.utils.checkpoint import checkpoint

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(3))
            self.n = nn.LayerNorm(8)

        def forward(self, x):
            for m in self.a:
                x = x + checkpoint(m, self.n(x), use_reentrant=False)
            return checkpoint(lambda a, b: torch.tanh(a) * b, x, x.sigmoid(), use_reentrant=False)

    return Net(), lambda s: (torch.randn(4, 8, generator=gen(s)),)


@net
def model_output_dataclass():
    from transformers.utils import ModelOutput

    @dataclass
    class Out(ModelOutput):
        loss: torch.FloatTensor | None = None
        logits: torch.FloatTensor = None
        hidden: tuple[torch.FloatTensor, ...] | None = None

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
            self.h = nn.Linear(6, 3)

        def forward(self, x, labels=None, output_hidden=True):
            hs = ()
            for layer in self.l:
                x = F.mish(layer(x))
                hs += (x,)
            lg = self.h(x)
            loss = None
            if labels is not None:
                loss = F.cross_entropy(lg, labels, label_smoothing=0.1, ignore_index=-100)
            return Out(loss=loss, logits=lg, hidden=hs if output_hidden else None)

    return Net(), lambda s: (torch.randn(4, 6, generator=gen(s)), torch.tensor([0, 2, -100, 1]))


@net
def plain_dataclass_and_namedtuple():
    class Pair(NamedTuple):
        a: Tensor
        b: Tensor

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(6, 6)

        def forward(self, x: dict[str, Tensor]):
            p = Pair(self.l(x["x"]), x["y"] * 2)
            q = p._replace(b=p.a + p.b)
            return {"pair": q, "list": [q.a.sin(), (q.b.cos(),)], "none": None}

    return Net(), lambda s: (
        {"x": torch.randn(3, 6, generator=gen(s)), "y": torch.randn(3, 6, generator=gen(s + 1))},
    )


@net
def dynamic_lengths_pos_embedding():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.Embedding(20, 8)
            self.p = nn.Embedding(32, 8)
            self.enc = nn.TransformerEncoder(
                nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2, enable_nested_tensor=False
            )
            self.h = nn.Linear(8, 4)

        def forward(self, ids):
            B, T = ids.shape
            pos = torch.arange(T, device=ids.device).unsqueeze(0).expand(B, T)
            x = self.e(ids) * math.sqrt(8) + self.p(pos)
            pad = ids.eq(0)
            m = nn.Transformer.generate_square_subsequent_mask(T)
            x = self.enc(
                x,
                mask=m,
                src_key_padding_mask=torch.zeros_like(pad, dtype=torch.float).masked_fill_(pad, -1e4),
            )
            return self.h(x[:, -1])

    return Net(), lambda s: (torch.randint(1, 20, (2 + s % 2, 4 + s % 3), generator=gen(s)),)


@net
def nn_transformer_full():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.t = nn.Transformer(8, 2, 1, 1, 16, 0.0, batch_first=True)
            self.a = nn.Embedding(10, 8)
            self.b = nn.Embedding(10, 8)
            self.h = nn.Linear(8, 10)

        def forward(self, s, t):
            m = self.t.generate_square_subsequent_mask(t.size(1))
            return self.h(self.t(self.a(s), self.b(t), tgt_mask=m, tgt_is_causal=True))

    return Net(), lambda s: (
        torch.randint(0, 10, (2, 5), generator=gen(s)),
        torch.randint(0, 10, (2, 4), generator=gen(s)),
    )


@net
def mamba_selective_scan():
    class Net(nn.Module):
        def __init__(self, d=8, n=4):
            super().__init__()
            self.inp = nn.Linear(d, 2 * d)
            self.conv = nn.Conv1d(d, d, 4, groups=d, padding=3)
            self.x = nn.Linear(d, 2 * n + 2)
            self.dt = nn.Linear(2, d)
            self.A = nn.Parameter(torch.log(torch.arange(1, n + 1).float().repeat(d, 1)))
            self.D = nn.Parameter(torch.ones(d))
            self.o = nn.Linear(d, d)
            self.n = n

        def forward(self, u):
            b, steps, d = u.shape
            x, z = self.inp(u).chunk(2, -1)
            x = F.silu(self.conv(x.transpose(1, 2))[..., :steps].transpose(1, 2))
            dt, B, C = self.x(x).split([2, self.n, self.n], -1)
            dt = F.softplus(self.dt(dt))
            A = -torch.exp(self.A.float())
            dA = torch.exp(torch.einsum("bld,dn->bldn", dt, A))
            dB = torch.einsum("bld,bln,bld->bldn", dt, B, x)
            h = torch.zeros(b, d, self.n)
            ys = []
            for t in range(steps):
                h = dA[:, t] * h + dB[:, t]
                ys.append(torch.einsum("bdn,bn->bd", h, C[:, t]))
            return self.o((torch.stack(ys, 1) + x * self.D) * F.silu(z))

    return Net(), lambda s: (torch.randn(2, 6, 8, generator=gen(s)),)


@net
def yolo_like_head_decode():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.b = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.SiLU(True))
            self.c = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.SiLU(True))
            self.h = nn.ModuleList([nn.Conv2d(24, 18, 1), nn.Conv2d(16, 18, 1)])
            self.register_buffer("anchors", torch.tensor([[1.0, 2.0], [2.0, 1.0], [3.0, 3.0]]))
            self.strides = [2, 4]

        def forward(self, x):
            a = self.b(x)
            b = self.c(a)
            a = torch.cat([a, F.interpolate(b, scale_factor=2, mode="nearest")], 1)
            out = []
            for i, f in enumerate((a, b)):
                p = self.h[i](f)
                bs, _, ny, nx = p.shape
                p = p.view(bs, 3, 6, ny, nx).permute(0, 1, 3, 4, 2).contiguous()
                yv, xv = torch.meshgrid(torch.arange(ny), torch.arange(nx), indexing="ij")
                grid = torch.stack((xv, yv), 2).view(1, 1, ny, nx, 2).float()
                y = p.sigmoid()
                y = y.clone()
                y[..., 0:2] = (y[..., 0:2] * 2.0 - 0.5 + grid) * self.strides[i]
                y[..., 2:4] = (y[..., 2:4] * 2) ** 2 * self.anchors.view(1, 3, 1, 1, 2)
                out.append(y.view(bs, -1, 6))
            return torch.cat(out, 1)

    return Net(), lambda s: (torch.randn(2, 3, 16, 16, generator=gen(s)),)


@net
def feature_pyramid_hooks_captured():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, 2, 1), nn.ReLU()
            )
            self.feats = {}
            self.body[1].register_forward_hook(self._save("low"))
            self.body[3].register_forward_hook(self._save("high"))

        def _save(self, k):
            def hook(m, i, o):
                self.feats[k] = o

            return hook

        def forward(self, x):
            y = self.body(x)
            return {k: v.mean((2, 3)) for k, v in self.feats.items()}, F.interpolate(
                y, size=x.shape[-2:], mode="bilinear", align_corners=False
            )

    return Net(), lambda s: (torch.randn(2, 3, 8, 8, generator=gen(s)),)


@net
def highway_char_cnn_tagger_crf():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.Embedding(20, 6, padding_idx=0)
            self.convs = nn.ModuleList(nn.Conv1d(6, 4, k) for k in (2, 3))
            self.t = nn.Linear(8, 8)
            self.g = nn.Linear(8, 8)
            self.lstm = nn.LSTM(8, 4, bidirectional=True, batch_first=True)
            self.em = nn.Linear(8, 3)
            self.trans = nn.Parameter(torch.randn(3, 3) * 0.1)

        def forward(self, ch, tags):
            b, t, c = ch.shape
            x = self.e(ch.view(b * t, c)).transpose(1, 2)
            x = torch.cat(
                [
                    F.max_pool1d(torch.relu(k(x)), x.size(2) - k.kernel_size[0] + 1).squeeze(-1)
                    for k in self.convs
                ],
                1,
            )
            g = torch.sigmoid(self.g(x))
            x = g * F.relu(self.t(x)) + (1 - g) * x
            em = self.em(self.lstm(x.view(b, t, -1))[0])
            al = em[:, 0]
            for i in range(1, t):
                al = torch.logsumexp(al.unsqueeze(2) + self.trans + em[:, i].unsqueeze(1), 1)
            score = em.gather(2, tags.unsqueeze(-1)).squeeze(-1).sum(1) + self.trans[
                tags[:, :-1], tags[:, 1:]
            ].sum(1)
            return torch.logsumexp(al, 1) - score

    return Net(), lambda s: (
        torch.randint(0, 20, (2, 4, 5), generator=gen(s)),
        torch.randint(0, 3, (2, 4), generator=gen(s)),
    )


@net
def ctc_speech():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.c = nn.Sequential(nn.Conv2d(1, 4, 3, (2, 1), 1), nn.Hardtanh(0, 20, inplace=True))
            self.r = nn.GRU(16, 6, bidirectional=True)
            self.o = nn.Linear(12, 5)

        def forward(self, x, y, ly):
            h = self.c(x.unsqueeze(1))
            b, c, f, t = h.shape
            h = h.view(b, c * f, t).permute(2, 0, 1)
            h, _ = self.r(h)
            h = h[..., :6] + h[..., 6:]
            lp = self.o(torch.cat([h, h], -1)).log_softmax(2)
            return F.ctc_loss(lp, y, torch.full((b,), t, dtype=torch.long), ly, zero_infinity=True), lp

    return Net(), lambda s: (
        torch.randn(2, 8, 10, generator=gen(s)),
        torch.randint(1, 5, (2, 4), generator=gen(s)),
        torch.tensor([4, 3]),
    )


@net
def where_masks_nonfinite():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(6, 6)
            self.register_buffer("mean", torch.zeros(6))
            self.register_buffer("std", torch.ones(6))
            self.register_buffer("n", torch.tensor(0, dtype=torch.long))

        def forward(self, x):
            m = torch.isnan(x)
            x = torch.where(m, self.mean.expand_as(x), x)
            x = torch.nan_to_num(x)
            if self.training:
                self.n.add_(1)
                self.mean.lerp_(x.detach().mean(0), 0.1)
                self.std.copy_(x.detach().std(0, unbiased=False).clamp_min(0.1))
            y = self.l((x - self.mean) / self.std)
            y = y.masked_fill(m, 0)
            z = torch.where(y > 0, y.clamp(min=1e-6).log(), y.exp() - 1)
            return (
                z,
                y.masked_select(~m).sum() if False else (y * ~m).sum(1),
                torch.cummax(y, 1).values,
                torch.sort(y, 1, descending=True)[0][:, :3],
            )

    def mk(s):
        x = torch.randn(5, 6, generator=gen(s))
        x[0, 1] = float("nan")
        return (x,)

    return Net(), mk


@net
def set_transformer_deepsets_pointnet():
    class TNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.m = nn.Sequential(nn.Conv1d(3, 8, 1), nn.BatchNorm1d(8), nn.ReLU())
            self.f = nn.Linear(8, 9)

        def forward(self, x):
            y = torch.max(self.m(x), 2, keepdim=True)[0].view(-1, 8)
            i = torch.eye(3).flatten().view(1, 9).repeat(x.size(0), 1)
            return (self.f(y) + i).view(-1, 3, 3)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.t = TNet()
            self.c = nn.Conv1d(6, 8, 1)
            self.h = nn.Linear(8, 4)

        def forward(self, x):
            T = self.t(x)
            x = torch.bmm(x.transpose(2, 1), T).transpose(2, 1)
            inner = -2 * torch.matmul(x.transpose(2, 1), x)
            xx = torch.sum(x**2, dim=1, keepdim=True)
            pd = -xx - inner - xx.transpose(2, 1)
            idx = pd.topk(k=3, dim=-1)[1]
            B, C, n = x.shape
            base = torch.arange(0, B).view(-1, 1, 1) * n
            fi = (idx + base).view(-1)
            xt = x.transpose(2, 1).contiguous()
            nb = xt.view(B * n, -1)[fi, :].view(B, n, 3, C)
            f = (nb - xt.view(B, n, 1, C)).mean(2)
            y = self.c(torch.cat([xt, f], -1).transpose(1, 2))
            reg = torch.mean(torch.norm(torch.bmm(T, T.transpose(2, 1)) - torch.eye(3)[None], dim=(1, 2)))
            return self.h(y.amax(-1)), reg

    return Net(), lambda s: (torch.randn(3, 3, 10, generator=gen(s)),)


@net
def film_hypernetwork_functional():
    from torch.func import functional_call

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(4, 4)
            self.hyper = nn.Linear(3, 20)
            self.film = nn.Linear(3, 8)

        def forward(self, x, z):
            w, b = self.hyper(z.mean(0)).split([16, 4])
            y = functional_call(self.base, {"weight": w.view(4, 4), "bias": b}, (x,))
            g, be = self.film(z).chunk(2, -1)
            return torch.addcmul(be, g, y), torch.baddbmm(y[None], x[None], w.view(1, 4, 4))

    return Net(), lambda s: (torch.randn(5, 4, generator=gen(s)), torch.randn(5, 3, generator=gen(s)))


@net
def nerf_ray_marching():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.ModuleList([nn.Linear(15, 16), nn.Linear(31, 16)])
            self.s = nn.Linear(16, 1)
            self.c = nn.Linear(19, 3)

        def enc(self, x):
            return torch.cat([x] + [f(2.0**i * x) for i in range(2) for f in (torch.sin, torch.cos)], -1)

        def forward(self, o, d):
            t = torch.linspace(2, 6, 5).expand(o.shape[0], 5)
            pts = o[..., None, :] + d[..., None, :] * t[..., :, None]
            e = self.enc(pts)
            h = F.relu(self.l[0](e))
            h = F.relu(self.l[1](torch.cat([h, e], -1)))
            sig = F.relu(self.s(h)[..., 0])
            rgb = torch.sigmoid(self.c(torch.cat([h, F.normalize(d, dim=-1)[:, None].expand(pts.shape)], -1)))
            dist = t[..., 1:] - t[..., :-1]
            dist = torch.cat([dist, torch.tensor([1e10]).expand(dist[..., :1].shape)], -1) * torch.norm(
                d[..., None, :], dim=-1
            )
            a = 1.0 - torch.exp(-sig * dist)
            w = a * torch.cumprod(torch.cat([torch.ones((a.shape[0], 1)), 1.0 - a + 1e-10], -1), -1)[:, :-1]
            return (
                torch.sum(w[..., None] * rgb, -2),
                torch.sum(w * t, -1),
                1.0 / torch.max(1e-10 * torch.ones_like(w.sum(-1)), w.sum(-1) + 0.1),
            )

    return Net(), lambda s: (torch.randn(4, 3, generator=gen(s)), torch.randn(4, 3, generator=gen(s + 1)))


@net
def bayes_linear_local_reparam_eval():
    class BL(nn.Module):
        def __init__(self, i, o):
            super().__init__()
            self.mu = nn.Parameter(torch.empty(o, i))
            self.rho = nn.Parameter(torch.empty(o, i))
            nn.init.kaiming_uniform_(self.mu, a=math.sqrt(5))
            self.rho.data.fill_(-3.0)

        def forward(self, x, eps):
            s = torch.log1p(torch.exp(self.rho))
            return F.linear(x, self.mu + s * eps), (-torch.log(s) + 0.5 * (s**2 + self.mu**2) - 0.5).sum()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = BL(4, 6)
            self.b = BL(6, 2)

        def forward(self, x, e1, e2):
            h, k1 = self.a(x, e1)
            y, k2 = self.b(F.elu(h), e2)
            return y, k1 + k2

    return Net(), lambda s: (
        torch.randn(3, 4, generator=gen(s)),
        torch.randn(6, 4, generator=gen(s)),
        torch.randn(2, 6, generator=gen(s)),
    )


@net
def normalizing_flow_realnvp():
    class C(nn.Module):
        def __init__(self, m):
            super().__init__()
            self.register_buffer("m", m)
            self.s = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(), nn.Linear(8, 4), nn.Tanh())
            self.t = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(), nn.Linear(8, 4))
            self.ls = nn.Parameter(torch.zeros(4))

        def forward(self, x):
            mx = x * self.m
            s = self.s(mx) * (1 - self.m) * self.ls.exp()
            return mx + (1 - self.m) * (x * s.exp() + self.t(mx)), s.sum(-1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.c = nn.ModuleList(C((torch.arange(4) % 2 == i % 2).float()) for i in range(3))
            self.W = nn.Parameter(torch.linalg.qr(torch.randn(4, 4))[0])

        def forward(self, x):
            ld = x.new_zeros(x.shape[0])
            for c in self.c:
                x, more = c(x)
                ld += more
            x = x @ self.W
            ld = ld + torch.slogdet(self.W)[1]
            prior = torch.distributions.MultivariateNormal(torch.zeros(4), torch.eye(4))
            return -(prior.log_prob(x) + ld), x

    return Net(), lambda s: (torch.randn(5, 4, generator=gen(s)),)


@net
def gumbel_hard_and_ste():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(6, 5)
            self.e = nn.Linear(5, 4)

        def forward(self, x, g):
            y = F.softmax((self.l(x) + g) / 0.7, -1)
            i = y.max(-1, keepdim=True)[1]
            h = torch.zeros_like(y, memory_format=torch.legacy_contiguous_format).scatter_(-1, i, 1.0)
            h = h - y.detach() + y
            q = torch.fake_quantize_per_tensor_affine(self.e(h), 0.1, 0, -128, 127)
            b = torch.sign(q) - q.detach() + q.clamp(-1, 1) if False else q
            return b, torch.round(q * 8) / 8 + (q - q.detach())

    return Net(), lambda s: (torch.randn(3, 6, generator=gen(s)), torch.randn(3, 5, generator=gen(s + 1)))


@net
def unfold_fold_local_attention():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Conv2d(4, 4, 1)
            self.k = nn.Conv2d(4, 4, 1)
            self.v = nn.Conv2d(4, 4, 1)
            self.rel = nn.Parameter(torch.randn(4, 1, 1, 3, 3))

        def forward(self, x):
            B, C, H, W = x.shape
            p = F.pad(x, [1, 1, 1, 1])
            q = self.q(x)
            k = self.k(p).unfold(2, 3, 1).unfold(3, 3, 1) + self.rel
            v = F.unfold(self.v(p), 3).view(B, C, 9, H, W)
            a = (q[..., None] * k.reshape(B, C, H, W, -1)).sum(1, keepdim=True).softmax(-1)
            y = torch.einsum("bchwk,bckhw->bchw", a.expand(-1, C, -1, -1, -1), v)
            return (
                y,
                F.fold(F.unfold(y, 2, stride=2), (H, W), 2, stride=2),
                torch.as_strided(y, (B, 2), (y.stride(0), 1)),
            )

    return Net(), lambda s: (torch.randn(2, 4, 6, 6, generator=gen(s)),)


@net
def embedding_bag_recommender_dlrm():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.bags = nn.ModuleList(nn.EmbeddingBag(10, 4, mode=m) for m in ("sum", "mean"))
            self.bot = nn.Linear(3, 4)
            self.top = nn.Linear(4 + 3, 1)

        def forward(self, d, i, off):
            x = self.bot(d)
            T = torch.cat([x] + [b(i, off) for b in self.bags], 1).view(x.size(0), -1, 4)
            Z = torch.bmm(T, T.transpose(1, 2))
            li = torch.tensor([a for a in range(3) for b in range(a)])
            lj = torch.tensor([b for a in range(3) for b in range(a)])
            return F.binary_cross_entropy_with_logits(
                self.top(torch.cat([x, Z[:, li, lj]], 1)).squeeze(1),
                torch.ones(x.size(0)),
                pos_weight=torch.tensor(2.0),
            ), torch.sum(torch.stack([b.weight.norm(2) for b in self.bags]))

    return Net(), lambda s: (
        torch.randn(3, 3, generator=gen(s)),
        torch.randint(0, 10, (7,), generator=gen(s)),
        torch.tensor([0, 2, 5]),
    )


@net
def ema_teacher_momentum_queue():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Linear(6, 4)
            self.k = copy.deepcopy(self.q)
            for p in self.k.parameters():
                p.requires_grad = False
            self.register_buffer("queue", F.normalize(torch.randn(4, 8), dim=0))
            self.register_buffer("ptr", torch.zeros(1, dtype=torch.long))

        @torch.no_grad()
        def _update(self):
            for a, b in zip(self.q.parameters(), self.k.parameters(), strict=False):
                b.data = b.data * 0.99 + a.data * 0.01

        def forward(self, a, b):
            q = F.normalize(self.q(a), dim=1)
            with torch.no_grad():
                k = F.normalize(self.k(b), dim=1)
            pos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
            neg = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
            lg = torch.cat([pos, neg], 1) / 0.07
            with torch.no_grad():
                self.queue[:, : a.shape[0]] = k.T
            return F.cross_entropy(lg, torch.zeros(a.shape[0], dtype=torch.long)), lg

    return Net(), lambda s: (torch.randn(2, 6, generator=gen(s)), torch.randn(2, 6, generator=gen(s + 1)))


@net
def script_like_beam_pointer_network():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.LSTM(2, 8, batch_first=True)
            self.dec = nn.LSTMCell(2, 8)
            self.w1 = nn.Linear(8, 8, False)
            self.w2 = nn.Linear(8, 8, False)
            self.v = nn.Parameter(torch.randn(8))
            self.start = nn.Parameter(torch.zeros(2))

        def forward(self, x):
            B, N, _ = x.shape
            E, (h, c) = self.enc(x)
            h, c = h[-1], c[-1]
            mask = torch.zeros(B, N, dtype=torch.bool)
            inp = self.start.expand(B, -1)
            lps = []
            for _ in range(N):
                h, c = self.dec(inp, (h, c))
                u = torch.tanh(self.w1(E) + self.w2(h).unsqueeze(1)) @ self.v
                u = u.masked_fill(mask, -1e9)
                lp = u.log_softmax(-1)
                i = lp.argmax(-1)
                lps.append(lp.gather(1, i[:, None]).squeeze(1))
                mask = mask.scatter(1, i[:, None], True)
                inp = torch.take_along_dim(x, i.view(B, 1, 1), 1).squeeze(1)
            return torch.stack(lps, 1).sum(1)

    return Net(), lambda s: (torch.rand(3, 4, 2, generator=gen(s)),)


@net
def conv3d_video_transposed_mixed():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.c = nn.Conv3d(2, 4, (1, 3, 3), padding=(0, 1, 1))
            self.t = nn.Conv3d(4, 4, (3, 1, 1), padding=(1, 0, 0), groups=2)
            self.n = nn.BatchNorm3d(4)
            self.u = nn.ConvTranspose3d(4, 2, 2, 2)
            self.d = nn.Dropout3d(0.0)

        def forward(self, x):
            h = F.celu(self.n(self.t(self.c(x))))
            return (
                self.u(F.avg_pool3d(self.d(h), (1, 2, 2), ceil_mode=True, count_include_pad=False)),
                F.adaptive_max_pool3d(h, (1, None, 2)),
                F.interpolate(h, scale_factor=(1, 2, 2), mode="trilinear"),
            )

    return Net(), lambda s: (torch.randn(2, 2, 3, 6, 6, generator=gen(s)),)


# ---- parametrizations, function transformations, containers
@net
def orthogonal_and_weight_norm_parametrizations():
    from torch.nn.utils import parametrizations, parametrize

    class Doubled(nn.Module):
        def forward(self, w):
            return w * 2

        def right_inverse(self, w):
            return w / 2

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = parametrizations.weight_norm(nn.Linear(6, 8), dim=0)
            self.b = parametrizations.spectral_norm(nn.Conv1d(2, 4, 3, padding=1))
            self.c = nn.Linear(16, 4)
            parametrize.register_parametrization(self.c, "weight", Doubled())
            self.d = parametrizations.orthogonal(nn.Linear(4, 4, bias=False), orthogonal_map="householder")
            self.e = parametrizations.orthogonal(nn.Linear(4, 4, bias=False))
            self.f = parametrizations.orthogonal(nn.Linear(4, 6, bias=False), orthogonal_map="cayley")

        def forward(self, x):
            y = F.elu(self.a(x)).view(x.shape[0], 2, 4)
            y = self.b(y).flatten(1)
            with parametrize.cached():
                z = self.c(y)
                return self.f(self.e(self.d(z) + self.d(z * 2)))

    return Net(), lambda s: (torch.randn(3, 6, generator=gen(s)),)


@net
def functional_ensemble_vmap():
    from torch.func import vmap

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w1 = nn.Parameter(torch.randn(3, 8, 5) * 0.3)
            self.b1 = nn.Parameter(torch.zeros(3, 8))
            self.w2 = nn.Parameter(torch.randn(3, 2, 8) * 0.3)

        def one(self, w1, b1, w2, x):
            return F.linear(torch.tanh(F.linear(x, w1, b1)), w2)

        def forward(self, x):
            return vmap(self.one, in_dims=(0, 0, 0, None))(self.w1, self.b1, self.w2, x).mean(0)

    return Net(), lambda s: (torch.randn(4, 5, generator=gen(s)),)


@net
def functional_call_of_generated_weights():
    from torch.func import functional_call

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
            self.hyper = nn.Linear(5, sum(p.numel() for p in self.inner.parameters()))

        def forward(self, x, z):
            flat = self.hyper(z)
            own = {}
            i = 0
            for n, p in self.inner.named_parameters():
                own[n] = flat[i : i + p.numel()].view_as(p) * 0.1 + p
                i += p.numel()
            return functional_call(self.inner, own, (x,))

    return Net(), lambda s: (torch.randn(4, 3, generator=gen(s)), torch.randn(5, generator=gen(s + 1)))


@net
def running_buffers_and_counters():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(4, 4)
            self.register_buffer("mean", torch.zeros(4))
            self.register_buffer("count", torch.zeros((), dtype=torch.long))
            self.register_buffer("hist", torch.zeros(6))
            self.register_buffer("table", torch.eye(4), persistent=False)

        def forward(self, x):
            y = self.l(x)
            if self.training:
                with torch.no_grad():
                    self.count += 1
                    self.mean.lerp_(y.mean(0), 0.1)
                    self.hist.index_add_(0, y.argmax(1), torch.ones(len(y)))
                    self.table[0] = self.table[0].roll(1)
            return (y - self.mean) @ self.table.T / (1 + self.count.clamp(max=10))

    return Net(), lambda s: (torch.randn(5, 4, generator=gen(s)),)


@net
def custom_functions_with_context():
    class Clip(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, lo, hi):
            ctx.save_for_backward(x)
            ctx.lo, ctx.hi = lo, hi
            return x.clamp(lo, hi)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * torch.where((x > ctx.lo) & (x < ctx.hi), 1.0, 0.1), None, None

    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, a):
            ctx.a = a
            return x.view_as(x)

        @staticmethod
        def backward(ctx, g):
            return -ctx.a * g, None

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(5, 6)
            self.b = nn.Linear(6, 3)
            self.dom = nn.Linear(6, 2)

        def forward(self, x):
            h = Clip.apply(self.a(x), -0.5, 0.5)
            return self.b(h), self.dom(Reverse.apply(h, 0.3)).log_softmax(-1)

    return Net(), lambda s: (torch.randn(4, 5, generator=gen(s)),)


@net
def einops_patches_and_axial_attention():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.patch = nn.Sequential(
                Rearrange("b c (h p) (w q) -> b h w (p q c)", p=2, q=2), nn.Linear(12, 16)
            )
            self.qkv = nn.Linear(16, 48)
            self.out = nn.Linear(16, 4)

        def att(self, x):
            q, k, v = einops.rearrange(self.qkv(x), "b n m (three h d) -> three b n h m d", three=3, h=4)
            a = torch.einsum("bnhid,bnhjd->bnhij", q, k) * 0.5
            return einops.rearrange(
                einops.einsum(a.softmax(-1), v, "b n h i j, b n h j d -> b n h i d"),
                "b n h m d -> b n m (h d)",
            )

        def forward(self, x):
            y = self.patch(x)
            y = y + self.att(y)
            y = y + einops.rearrange(
                self.att(einops.rearrange(y, "b h w d -> b w h d")), "b w h d -> b h w d"
            )
            pooled = einops.reduce(y, "b (h k) w d -> b h d", "max", k=2)
            return self.out(einops.repeat(pooled, "b h d -> b h r d", r=2)), einops.pack(
                [pooled, y.mean((1, 2))], "b * d"
            )[0]

    return Net(), lambda s: (torch.randn(2, 3, 8, 8, generator=gen(s)),)


@net
def nested_dicts_in_and_dataclass_out():
    @dataclass
    class Out:
        logits: Tensor
        aux: dict
        loss: Tensor | None = None

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.ModuleDict({"user": nn.Embedding(9, 4), "item": nn.Embedding(7, 4)})
            self.head = nn.Linear(8 + 3, 1)

        def forward(self, batch):
            parts = [self.emb[k](batch["ids"][k]) for k in sorted(self.emb)]
            x = torch.cat([*parts, batch["dense"]], -1)
            y = self.head(x).squeeze(-1)
            loss = (
                F.binary_cross_entropy_with_logits(y, batch["label"], weight=batch.get("weight"))
                if "label" in batch
                else None
            )
            return Out(y, {"norm": [p.norm() for p in parts]}, loss)

    def inputs(s):
        return (
            {
                "ids": {
                    "user": torch.randint(0, 9, (5,), generator=gen(s)),
                    "item": torch.randint(0, 7, (5,), generator=gen(s + 1)),
                },
                "dense": torch.randn(5, 3, generator=gen(s)),
                "label": torch.rand(5, generator=gen(s)),
            },
        )

    return Net(), inputs


@net
def shape_driven_control_flow_unet():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.ModuleList([nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 12, 3, 2, 1)])
            self.up = nn.ModuleList([nn.ConvTranspose2d(12, 8, 2, 2), nn.ConvTranspose2d(16, 3, 2, 2)])

        def forward(self, x):
            h, w = x.shape[-2:]
            pad = ((-w) % 4, (-h) % 4)
            if any(pad):
                x = F.pad(x, (0, pad[0], 0, pad[1]), mode="reflect")
            skips = []
            for d in self.down:
                x = F.silu(d(x))
                skips.append(x)
            x = self.up[0](skips.pop())
            s = skips.pop()
            if s.shape[-1] != x.shape[-1]:
                x = F.interpolate(x, size=s.shape[-2:])
            x = self.up[1](torch.cat([x, s], 1))[..., :h, :w]
            while x.shape[-1] > 4:
                x = F.avg_pool2d(x, 2)
            return x

    return Net(), lambda s: (torch.randn(2, 3, 10, 9, generator=gen(s)),)


@net
def tied_autoencoder_with_hooks():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.ModuleList([nn.Linear(8, 6), nn.Linear(6, 4)])
            self.bias = nn.ParameterList([nn.Parameter(torch.zeros(6)), nn.Parameter(torch.zeros(8))])
            self.acts = {}
            self.enc[0].register_forward_hook(lambda m, i, o: self.acts.__setitem__("h", o))
            self.enc[1].register_forward_pre_hook(lambda m, i: (i[0] * 0.9,))
            self.enc[1].register_full_backward_hook(lambda m, gi, go: None)

        def forward(self, x):
            h = x
            for layer in self.enc:
                h = torch.sigmoid(layer(h))
            for layer, b in zip(reversed(self.enc), self.bias, strict=True):
                h = F.linear(h, layer.weight.t(), b)
            return F.mse_loss(h, x), self.acts.pop("h").abs().mean()

    return Net(), lambda s: (torch.randn(4, 8, generator=gen(s)),)


@net
def views_in_place_and_strided_writes():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(6, 12)
            self.g = nn.Parameter(torch.ones(3))

        def forward(self, x):
            y = self.l(x).view(-1, 3, 4).transpose(1, 2).contiguous()
            y[:, ::2] += y[:, 1::2].detach()
            y.view(-1)[::5].mul_(0.5)
            d = y.new_zeros(x.shape[0], 4, 4)
            d.diagonal(dim1=1, dim2=2).copy_(y[..., 0])
            d[:, 0, 1:] = y[:, 1:, 2]
            d.masked_fill_(d > 1, 1.0)
            d.triu_(-1)
            z = torch.empty_like(y)
            z[...] = y * self.g
            z.clamp_(min=-1).squeeze_()
            m = torch.stack(list(z.unbind(1)), 0)
            m[1:] = m[:-1].clone()
            return (
                d.sum((1, 2)),
                m.permute(1, 0, 2),
                torch.as_strided(z.contiguous(), (x.shape[0], 3), (12, 1)),
            )

    return Net(), lambda s: (torch.randn(5, 6, generator=gen(s)),)


@net
def cells_in_a_generator():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.c = nn.GRUCell(3, 6)
            self.l = nn.LSTMCell(6, 5)
            self.o = nn.Linear(5, 2)

        def steps(self, x):
            h = x.new_zeros(x.shape[0], 6)
            s = None
            for t in range(x.shape[1]):
                h = self.c(x[:, t], h)
                s = self.l(h, s)
                yield self.o(s[0])

        def forward(self, x):
            ys = list(self.steps(x))
            w = [math.exp(-i) for i, _ in enumerate(ys)]
            return torch.stack(ys, 1), functools.reduce(
                lambda a, b: a + b, (y * k for y, k in zip(ys, w, strict=True))
            )

    return Net(), lambda s: (torch.randn(3, 4, 3, generator=gen(s)),)


@net
def branches_on_numbers():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(5, 5)
            self.b = nn.Linear(5, 5)

        def forward(self, x):
            y = self.a(x)
            y = self.b(y).relu() if y.mean() > 0 else self.b(-y).tanh()
            return y * float(x.abs().max() > 1)

    return Net(), lambda s: (torch.randn(4, 5, generator=gen(s)),)


@net
def forces_by_an_inner_gradient():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 8)
            self.b = nn.Linear(8, 1)

        def energy(self, x):
            return self.b(F.softplus(self.a(x))).sum()

        def forward(self, x):
            g = torch.func.grad(self.energy)(x)
            return -g, self.energy(x)

    return Net(), lambda s: (torch.randn(3, 4, generator=gen(s)),)


@net
def sparse_moe_sort_dispatch():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(6, 4, bias=False)
            self.w = nn.Parameter(torch.randn(4, 6, 6) * 0.3)

        def forward(self, x):
            p = self.gate(x).softmax(-1)
            v, i = p.topk(2, -1)
            v = v / v.sum(-1, keepdim=True)
            flat = i.flatten()
            order = flat.argsort(stable=True)
            tok = order // 2
            y = torch.bmm(x[tok].unsqueeze(1), self.w[flat[order]]).squeeze(1) * v.flatten()[order, None]
            out = torch.zeros_like(x).index_add_(0, tok, y)
            load = F.one_hot(flat, 4).float().mean(0)
            return out, (load * p.mean(0)).sum() * 4, torch.bincount(flat, minlength=4).cumsum(0).float()

    return Net(), lambda s: (torch.randn(7, 6, generator=gen(s)),)
