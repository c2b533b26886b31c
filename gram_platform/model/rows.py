"""Decodes many sequences at once, each at its own position and with its own modules.

Shapes: B rows that read tokens now, R rows of the cache, T tokens, S visible positions, L layers, D
d_model, H heads, K key-value heads, G = H / K, h head_dim, V vocabulary; X = G T queries that share
a key-value head.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gram_platform.config.identity import invalid
from gram_platform.model.kernels import rotate
from gram_platform.model.row_modules import Activation, RowLoras, RowMlps
from gram_platform.model.transformer import Attention, Block, Transformer

# The cache's rows, the positions of new tokens, what each token sees, and the rotary tables.
Reading = Sequence[Tensor]


class RowReader:
    """A model with a key-value cache, of which each row holds a sequence of up to seq_len tokens.

    A row sees only positions that it has read and, if the model masks documents, only its current
    document. Moves the auxiliary MLPs or LoRAs out of `model` into stacks. The modules'
    attention heads stay in `model`.
    """

    def __init__(self, model: Transformer, num_rows: int):
        kinds = {module.kind for module in model.config.modules}
        if len(kinds) > 1:
            raise invalid("model.modules", sorted(kinds), "modules of one kind")
        config, weight = model.config, model.lm_head.weight
        self.model, self.domains, self.num_rows = model, config.module_domains, num_rows
        # The core's heads, then one for each module.
        has_heads = any(module.num_heads for module in config.modules)
        num_kv_heads = config.num_kv_heads + has_heads * len(config.modules)
        shape = (config.num_layers, num_rows, num_kv_heads, config.seq_len, config.head_dim)
        self.keys_LRKSh = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
        self.values_LRKSh = torch.zeros_like(self.keys_LRKSh)
        self._memories = self.keys_LRKSh, self.values_LRKSh
        self._starts_R = torch.zeros(num_rows, dtype=torch.int64, device=weight.device)
        stack = RowLoras if kinds == {"lora"} else RowMlps
        self.stacks: list[RowMlps | RowLoras | None] = []
        for block in model.blocks:
            modules = [block.aux[domain] for domain in self.domains]
            self.stacks.append(stack(modules) if modules else None)
            block.aux.clear()

    @property
    def device(self) -> torch.device:
        return self.keys_LRKSh.device

    @torch.no_grad()
    def read(
        self,
        tokens_BT: Tensor,
        num_seen_B: Tensor,
        num_tokens_B: Tensor,
        active: Activation,
        first_row: int = 0,
    ) -> Tensor:
        """Reads tokens into B rows from `first_row` on. Returns logits_BV of their last tokens.

        Row b has already read `num_seen_B[b]` tokens. This call reads the first `num_tokens_B[b]`
        tokens of `tokens_BT[b]`. The other tokens are padding.
        """
        B, T = tokens_BT.shape
        positions_BT = num_seen_B[:, None] + torch.arange(T, device=self.device)
        num_positions = int(num_seen_B.max()) + T
        assert num_positions <= self.model.config.seq_len, "a row does not fit the context"
        visible_BTS = torch.arange(num_positions, device=self.device) <= positions_BT[..., None]
        memory_rows = torch.arange(first_row, first_row + B, device=self.device)
        if self.model.config.document_end >= 0:
            starts_BT = self._document_starts(tokens_BT, positions_BT, num_tokens_B, memory_rows)
            visible_BTS &= torch.arange(num_positions, device=self.device) >= starts_BT[..., None]
        rotary = self.model.rotary
        tables = rotary.cos_Th[positions_BT][:, None], rotary.sin_Th[positions_BT][:, None]
        reading = (memory_rows, positions_BT, visible_BTS, *tables)
        rows = slice(first_row, first_row + B)
        x_BTD = self.model.wte(tokens_BT)
        for layer, block in enumerate(self.model.blocks):
            normed_BTD = block.ln_1(x_BTD)
            x_BTD = x_BTD + self._attend(block.attn, layer, 0, normed_BTD, reading, rows)
            if block.heads and active.pairs.counts:
                x_BTD = x_BTD + self._attend_modules(block, layer, normed_BTD, reading, active)
            x_BTD = self._add_mlps(block, layer, x_BTD, active)
        last_BD = x_BTD[torch.arange(B, device=self.device), num_tokens_B - 1]
        return self.model.lm_head(self.model.ln_f(last_BD))

    def clear(self, first_row: int, num_rows: int) -> None:
        """Zeroes cached rows, because a NaN would reach the next sequence despite the mask."""
        for memory in self._memories:
            memory[:, first_row : first_row + num_rows] = 0.0

    def move(self, source: int, target: int, num_seen: int) -> None:
        """Copies the first `num_seen` cached tokens of row `source` to row `target`."""
        for memory in self._memories:
            memory[:, target, :, :num_seen] = memory[:, source, :, :num_seen]
            memory[:, target, :, num_seen:] = 0.0
        self._starts_R[target] = self._starts_R[source]

    def _document_starts(
        self,
        tokens_BT: Tensor,
        positions_BT: Tensor,
        num_tokens_B: Tensor,
        rows_B: Tensor,
    ) -> Tensor:
        """Returns the position [B, T] at which each token's document starts.

        Also stores the start of the document to which each row's next token will belong.
        """
        before_B = torch.where(positions_BT[:, 0] > 0, self._starts_R[rows_B], 0)
        after_BT = torch.where(tokens_BT == self.model.config.document_end, positions_BT + 1, 0)
        starts_BT1 = torch.cat([before_B[:, None], after_BT], dim=1).cummax(dim=1).values
        self._starts_R[rows_B] = starts_BT1.gather(1, num_tokens_B[:, None])[:, 0]
        return starts_BT1[:, :-1]

    def _attend(
        self,
        attention: Attention,
        layer: int,
        first_head: int,
        normed_BTD: Tensor,
        reading: Reading,
        rows: slice | Tensor,
    ) -> Tensor:
        """Adds new keys and values to the cache. Returns the attention's output x_BTD.

        `first_head` is the index of the attention's first key-value head in the cache. `rows` are
        the cache rows of `reading`, as a slice or as indices.
        """
        rows_B, positions_BT, visible_BTS, cos, sin = reading
        q_BHTh, *new = attention.heads(normed_BTD, lambda x, _: rotate(x, cos, sin))
        heads = slice(first_head, first_head + attention.num_kv_heads)
        for memory, new_BKTh in zip(self._memories, new, strict=True):
            memory[layer][rows_B[:, None], heads, positions_BT] = new_BKTh.transpose(1, 2)
        B, H, T, h = q_BHTh.shape
        group, num_positions = H // attention.num_kv_heads, visible_BTS.shape[-1]
        k_BKSh, v_BKSh = (m[layer][rows, heads, :num_positions] for m in self._memories)
        mask_B1XS = visible_BTS[:, None].repeat(1, 1, group, 1)
        q_BKXh = q_BHTh.reshape(B, -1, group * T, h)
        out_BKXh = F.scaled_dot_product_attention(q_BKXh, k_BKSh, v_BKSh, attn_mask=mask_B1XS)
        return attention.o_proj(out_BKXh.reshape(B, H, T, h).transpose(1, 2).flatten(2))

    def _attend_modules(
        self, block: Block, layer: int, normed_BTD: Tensor, reading: Reading, active: Activation
    ) -> Tensor:
        """Adds up the weighted outputs of each row's module heads.

        Computes a module's heads only for the rows that have the module.
        """
        pairs, outs, begin = active.pairs, [], 0
        for module, number in pairs.counts:
            chosen = slice(begin, begin + number)
            begin += number
            sources = chosen if pairs.sources_P is None else pairs.sources_P[chosen]
            x_nTD, domain = normed_BTD[sources], self.domains[module]
            out_nTD = torch.zeros_like(x_nTD)
            if domain in block.heads:
                head, first_head = block.heads[domain], block.attn.num_kv_heads + module
                own = [part[sources] for part in reading]
                out_nTD = self._attend(head, layer, first_head, x_nTD, own, own[0])
            outs.append(out_nTD)
        return pairs.add_up(torch.cat(outs))

    def _add_mlps(self, block: Block, layer: int, x_BTD: Tensor, active: Activation) -> Tensor:
        normed_BTD, stack = block.ln_2(x_BTD), self.stacks[layer]
        if stack is not None and active.pairs.counts:
            return x_BTD + stack(block.mlp, normed_BTD, active)
        return x_BTD if block.mlp is None else x_BTD + block.mlp(normed_BTD)
