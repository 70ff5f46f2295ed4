#!/usr/bin/env python3
"""Plants faults in the CUDA kernels, one after the other: does the emulation find them?

    scripts/mutate_cuda.py [WORDS...] [--library build-kernels/lib/libtsallis.a] [--json FILE]

WORDS: only faults whose file or name holds one of them. Each fault is a replacement in a copy of
src/attention/cuda, src/core/cuda or, of row maps, src/simplex/cuda, compiled with
scripts/mutate_cuda.cc, which runs drawn problems. Ends with 1 if a fault is not found that is not
known to be harmless (`harmless` says why), or the other way round, or if its text is no longer in
the sources. src/core/cuda/testing/README.md has the table. It takes half an hour of a core.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
ATTENTION, ROWS, CORE = "attention/cuda", "simplex/cuda", "core/cuda"
# A right kernel takes 8 s.
SECONDS = 180


class Fault(NamedTuple):
    file: str
    name: str
    old: str
    new: str
    type: str = "BFloat16"  # of attention's problems; row maps are drawn in all types
    harmless: str = ""  # why it changes nothing that a test may ask for
    room: str = ATTENTION


FAULTS = [
    Fault(
        "sweep.h",
        "no barrier before keys are read",
        "SyncBlockCount(full) >= (List::kLong ? 1 : kFullLanes);",
        "OrOfWarp(full ? 1 : 0) != 0;",
    ),
    Fault(
        "sweep.h",
        "a stage is filled again before the barrier",
        "    WaitForCopies<0>();\n    // The tile is there, and nobody reads the one before.\n",
        "    WaitForCopies<0>();\n    if (next >= 0) fetch(next, (step + 1) % Shape::kStages);\n",
    ),
    Fault(
        "sweep.h",
        "does not wait for copies",
        "    WaitForCopies<0>();\n    // The tile is there",
        "    // The tile is there",
    ),
    Fault(
        "sweep.h",
        "no __syncwarp behind lists that have been compacted",
        "    raised.bound[r] = lists.bound[r];\n  }\n  SyncWarp();\n",
        "    raised.bound[r] = lists.bound[r];\n  }\n",
        harmless="a later barrier orders the same, unless a list is compacted within the last tile",
    ),
    Fault(
        "sweep.h",
        "what is kept has no more places in memory",
        "(kept > kList && sweep.lists.keys != nullptr)",
        "false",
    ),
    Fault(
        "sweep.h",
        "a place is passed over behind a hit",
        "rows[r].mine += CountBits(hits[r]);",
        "rows[r].mine += 1 + CountBits(hits[r]);",
    ),
    Fault(
        "sweep.h",
        "a compacted list is not spread evenly",
        "(kept - Lane() % 4 + 3) / 4",
        "(kept - Lane() % 4 + 2) / 4",
    ),
    Fault(
        "saved_lists.h",
        "a list that the backward pass finds full",
        "4 * room - 6 < kList ? 4 * room - 6 : kList;",
        "kList;",
    ),
    Fault(
        "saved_lists.h",
        "memory that no forward pass has written",
        "if (LoadDevice(header + i) != Header(i)) return kNotSaved;",
        "",
    ),
    Fault(
        "saved_lists.h",
        "rows of no sequence have counts of before",
        "if (i < saved.rows) StoreDevice(saved.counts + i, 0);",
        "",
    ),
    Fault(
        "saved_lists.h",
        "rows without room are read",
        "if (row >= rows) return kNotSaved;",
        "",
    ),
    Fault(
        "saved_lists.h",
        "one row too many has room",
        "const std::size_t saves = fit < rows ? fit : rows;",
        "const std::size_t saves = fit + 1 < rows ? fit + 1 : rows;",
    ),
    Fault(
        "saved_lists.h",
        "a row of a block is not loaded",
        "kRowsOfBlock = kRows * kWarps;",
        "kRowsOfBlock = kRows * kWarps + 1;",
    ),
    Fault(
        "saved_lists.h",
        "the second half of a list is not loaded",
        "      if (i >= count[r]) continue;\n      StoreDevice",
        "      if (i >= count[r] || half > 0) continue;\n      StoreDevice",
    ),
    Fault(
        "sweep.h",
        "saved: rows without room are written",
        "row.row >= 0 && index < sweep.saved.rows;",
        "row.row >= 0;",
    ),
    Fault(
        "sweep.h",
        "saved: entries near the threshold are not counted",
        "near += in && !(z < known_bound) ? 1.0f : 0.0f;",
        "",
    ),
    Fault(
        "sweep.h",
        "saved: a row without a list counts as saved",
        "dense || !again ? kNotSaved : kept;",
        "!again ? kNotSaved : kept;",
    ),
    Fault(
        "sweep.h",
        "saved: a bound that is above the backward pass's",
        "(row.bound < known_bound && near",
        "(near",
        harmless="no drawn guess or bound comes so near to its threshold",
    ),
    Fault(
        "sweep.h",
        "saved: a block is left out though it lacks a row",
        "if (SyncBlockCount(lacks) == 0) return;",
        "if (SyncBlockCount(lacks) <= 1) return;",
    ),
    Fault(
        "list_backward.h",
        "entries are added in the order of the list",
        "entries.Store(before[half],",
        "entries.Store(i,",
    ),
    Fault(
        "list_backward.h",
        "no barrier before the next row's entries",
        "  SyncWarp();  // the entries of the row before have been read\n",
        "",
    ),
    Fault(
        "list_backward.h",
        "no barrier behind sorted entries",
        "  SyncWarp();  // all lanes read what others sorted\n",
        "",
    ),
    Fault(
        "list_backward.h",
        "a gradient of a product at the place of another",
        "index * kList + place, w);",
        "index * kList + half * kWarp + lane, w);",
    ),
    Fault(
        "sweep.h",
        "guesses: not proved",
        "const bool failed = !dense &&",
        "const bool failed = false &&",
    ),
    Fault(
        "sweep.h",
        "guesses: a bound that no list has raised counts as proved",
        "List::kLong && !(row.bound > start) ? -kMostFloat : row.bound;",
        "row.bound;",
    ),
    Fault(
        "list.h",
        "guesses: no step from above a threshold",
        "if (first && next > top && top < 1.0f) {",
        "if (first && next > top && top > 1.0f) {",
    ),
    Fault(
        "sweep.h",
        "guesses: a block that is no pilot is left out",
        ".first == place.first;",
        ".first == place.first + rows;",
    ),
    Fault(
        "sweep.h",
        "guesses: above all scores of a sink's row",
        "fminf(static_cast<float>(tau), largest)",
        "static_cast<float>(tau)",
    ),
    Fault(
        "guess.h",
        "no barrier behind a tile of keys",
        "    SyncBlock();  // the tile is there, and nobody reads the one before\n",
        "",
    ),
    Fault(
        "guess.h",
        "does not wait for keys",
        "    WaitForCopies<0>();\n    SyncBlock();",
        "    SyncBlock();",
    ),
    Fault(
        "guess.h",
        "a stage of keys is filled too early",
        "fetch(from + kKeys, stage ^ 1);",
        "fetch(from + kKeys, stage);",
    ),
    Fault(
        "guess.h",
        "no barrier before a covariance is written",
        "    SyncBlock();  // the last tile has been read, and the means are there\n",
        "",
    ),
    Fault(
        "guess.h",
        "no barrier before a covariance is read",
        "    SyncBlock();\n    float s[Shape::kTiles]",
        "    float s[Shape::kTiles]",
    ),
    Fault(
        "guess.h",
        "moments that are not a covariance",
        "- means.Load(x) * means.Load(y + four + e);",
        "+ 0.0f * means.Load(x);",
    ),
    Fault(
        "guess.h",
        "the mean of another column",
        "means.Load(column + 8 * j + 2 * t + e)",
        "means.Load(column + 8 * j + 2 * t + 1 - e)",
    ),
    Fault(
        "guess.h",
        "moments of another column",
        "const int key = 8 * i + Lane() % 4 * 2 + e % 2, column = first + e / 2 * 8 + Lane() / 4;",
        "const int key = 8 * i + Lane() % 4 * 2 + e % 2, column = first + e / 2 * 8 + Lane() % 8;",
    ),
    Fault(
        "guess.h",
        "a lane's pilots are left out of the sum",
        "for (int bits = 1; bits < kWarp; bits *= 2)",
        "for (int bits = 1; bits < 1; bits *= 2)",
    ),
    Fault(
        "list.h",
        "no __syncwarp between reading and writing a list",
        "      SyncWarp();\n      if (keeps) {",
        "      if (keeps) {",
    ),
    Fault(
        "list.h",
        "a list written anew passes over a lane",
        "kept + CountBits(quad & ((1u << t) - 1u));",
        "kept + CountBits(quad & ((2u << t) - 1u));",
    ),
    Fault(
        "list.h",
        "long: keys in their values' places",
        "StoreOfBlock(words + at + kWarp, static_cast",
        "StoreOfBlock(words + at + 4, static_cast",
    ),
    Fault(
        "list.h",
        "long: compacting drops what the bound does not",
        "return in && !(z < bound);",
        "return in && !(z < bound + 0.02f);",
    ),
    Fault(
        "list.h",
        "long: compacting drops NaN",
        "return in && !(z < bound);",
        "return in && z >= bound;",
    ),
    Fault(
        "sweep.h",
        "long: a list has no room for a tile",
        "List::kLong ? room - kKeys / 4 :",
        "List::kLong ? room - kKeys / 4 + 8 :",
    ),
    Fault(
        "sweep.h",
        "long: lists begin without their bounds",
        "row.bound = sweep.Start<List::kLong>(head, at, head.Index(call, at));",
        "row.bound = sweep.Start<List::kLong>(head, at, head.Index(call, at)) + 0.05f;",
    ),
    Fault(
        "sweep.h",
        "long: a full list goes on",
        "> usual - usual / 8) mine = kDenseLane;",
        "> kDenseLane) mine = kDenseLane;",
    ),
    Fault(
        "sweep.h",
        "long: a quad's lanes differ in whether their row is dense",
        "if (Shuffle(mine, 4 * quad) > usual - usual / 8)",
        "if (mine > usual - usual / 8)",
        harmless="the first lane, which has the most, says so; the others list keys for nothing",
    ),
    Fault(
        "sweep.h",
        "long: scores that are not finite go to a dense row's list",
        "      if (List::kLong && rows[r].mine == kDenseLane) hits[r] = 0;\n",
        "",
    ),
    Fault(
        "sweep.h",
        "long: no barrier between blocks of rows",
        "    WaitForCopies<0>();\n    SyncBlock();\n  }\n}",
        "    WaitForCopies<0>();\n  }\n}",
    ),
    Fault(
        "sweep.h",
        "long: a tile is under way behind the end",
        "    WaitForCopies<0>();\n    SyncBlock();\n  }\n}",
        "    SyncBlock();\n  }\n}",
    ),
    Fault(
        "sweep.h",
        "long: all blocks share a slot",
        "of.slots + BlockX() * LongSlots::Words(room);",
        "of.slots;",
    ),
    Fault(
        "sweep.h",
        "long: warps share lists",
        "slot + warp * kStride * room + r",
        "slot + r",
    ),
    Fault(
        "sweep.h",
        "long: a block's rows are counted as if it had one",
        "blocks = (count + Shape::kRows - 1) / Shape::kRows;",
        "blocks = count > 0 ? 1 : 0;",
        harmless="the other rows stay dense; WorkOfTenProblems counts what that costs",
    ),
    Fault(
        "sweep.h",
        "long: a row behind the last one",
        "      return first + i < count ? of.dense.At(call, head, first + i)\n",
        "      return first + i <= count ? of.dense.At(call, head, first + i)\n",
    ),
    Fault(
        "sweep.h",
        "long: the end of the keys is that of a block's first row",
        "first + Shape::kRows < count ? Shape::kRows - 1 : count - 1 - first;",
        "0;",
    ),
    Fault(
        "run.h",
        "long: rows are not found anew",
        "        FindDense();\n      }\n",
        "      }\n",
        harmless="the dense kernel computes rows again that have lists, with the same results",
    ),
    Fault(
        "sweep.h",
        "no __syncwarp before the output reads weights",
        "  SyncWarp();  // all lanes read what this quad wrote\n",
        "",
    ),
    Fault(
        "sweep.h",
        "a bound above the threshold",
        "- kSolveSlack * (1.0f + fabsf(solved.top))",
        "+ 2e-2f",
    ),
    Fault(
        "list.h",
        "a bound without its error",
        "kScoreSlack = 4e-6f, kSolveSlack = 1e-5f",
        "kScoreSlack = 0.0f, kSolveSlack = 0.0f",
        harmless="a key that close to the threshold weighs less than float32's own rounding moves",
    ),
    Fault(
        "sweep.h",
        "distances of a tile the wrong way round",
        "nearest, a < b ? b : a, kScoreSlack",
        "a < b ? b : a, nearest, kScoreSlack",
    ),
    Fault(
        "sweep.h",
        "a list is full too late",
        "rows[r].mine + CountBits(hits[r]) > room);",
        "rows[r].mine + CountBits(hits[r]) > room + 2);",
    ),
    Fault(
        "sweep.h",
        "a full list takes more scores",
        "mine + count > tile.room;",
        "mine + count > tile.room + 2;",
    ),
    Fault(
        "sweep.h",
        "one key too many is visible",
        "key >= rows[r].end) x = -kInfinity",
        "key > rows[r].end) x = -kInfinity",
    ),
    Fault(
        "sweep.h",
        "negative length scales keep their sign",
        "negative = factor < 0.0f;",
        "negative = false;",
    ),
    Fault(
        "sweep.h",
        "keys' fragments from the wrong lanes",
        "2 * c + lane / 8 % 2",
        "2 * c + lane / 16 % 2",
    ),
    Fault("sweep.h", "operands exchanged", "q_[m][c], b[0], b[1]", "q_[m][c], b[1], b[0]"),
    Fault(
        "device.h",
        "NaN is dropped by the filter",
        "(x < y ? 1u : 0u)",
        "(x >= y ? 0u : 1u)",
        room=CORE,
    ),
    Fault(
        "sweep.h",
        "the sink is left out of the threshold",
        "SolveLists(lists, head.sink,",
        "SolveLists(lists, -kInfinity,",
    ),
    Fault(
        "sweep.h",
        "the second half of a tile is not looked at",
        "four < kOfLane; four += 4",
        "four < kOfLane / 2; four += 4",
    ),
    Fault(
        "sweep.h",
        "a masked key comes into a list",
        "head->Sees(*mask, true, row.row, key)",
        "head->Sees(*mask, true, row.row, row.begin)",
    ),
    Fault(
        "sweep.h",
        "a tile behind an empty one is left out, too",
        "      --tile;\n",
        "      tile -= 2;\n",
    ),
    Fault(
        "call.h",
        "the last row of blocks is not looked at",
        "last / block_q - row + 1) * columns",
        "last / block_q - row + (last == first)) * columns",
    ),
    Fault(
        "call.h",
        "only as many blocks as a warp has lanes are looked at",
        "masks.all || !masks.any); i += kWarp",
        "masks.all || !masks.any); i += 1024",
    ),
    Fault(
        "call.h",
        "a block mask's columns counted in rows' blocks",
        "key / static_cast<int>(mask.block_k)",
        "key / static_cast<int>(mask.block_q)",
    ),
    Fault(
        "call.h",
        "a boolean mask of the first sequence for all",
        "Offset(mask.visible_strides, b, h, row, key)",
        "Offset(mask.visible_strides, 0, h, row, key)",
    ),
    Fault(
        "dense.h",
        "masks are not looked at where a block has gaps",
        "head.IsVisible(call, masks, row.row, key, &bias)",
        "head.IsVisible(call, {}, row.row, key, &bias)",
    ),
    Fault(
        "dense_backward.h",
        "rows: a masked key has a gradient",
        "if (kGeneral && !head.IsVisible(backward.call, masks, row.row, key, &bias)) continue;",
        "",
    ),
    Fault(
        "dense_backward.h",
        "keys: a masked key has a gradient",
        "        if (kGeneral && !head.IsVisible(call, masks, row, key, &bias)) continue;\n",
        "",
    ),
    Fault(
        "sweep.h",
        "a wide head is swept",
        "head.softmax() || head.wide || !(",
        "head.softmax() || !(",
    ),
    Fault(
        "dense.h",
        "wide: Newton's method stops early",
        "fabs(log_sum) <= 1e-12",
        "fabs(log_sum) <= 1e-3",
    ),
    Fault(
        "dense.h",
        "wide: a bracket without the solution",
        "row.low = -log(static_cast<double>(keys))",
        "row.low = -0.5 * log(static_cast<double>(keys))",
    ),
    Fault(
        "dense.h",
        "wide: the sink is left out of the sum",
        "wide.Step(head, p + weight, u + weight / ratio)",
        "wide.Step(head, p, u)",
    ),
    Fault(
        "dense.h",
        "wide: tau without its peak's unit",
        "head.eps * static_cast<double>(peak) - exp(head.eps * w)",
        "static_cast<double>(peak) - exp(head.eps * w)",
    ),
    Fault(
        "gradients.h",
        "wide: a slope of another power",
        "exp((1.0 - head.eps) * log_p)",
        "exp(head.eps * log_p)",
    ),
    Fault(
        "weights.h",
        "a list's columns as they come",
        "weights.Put(begin, end, before, key, LoadDevice(values + i));",
        "weights.Put(begin, end, i, key, LoadDevice(values + i));",
    ),
    Fault(
        "weights.h",
        "columns of a lane to the left behind one's own",
        "(i < t ? 2 : i == t ? e : 0)",
        "(i == t ? e : 0)",
    ),
    Fault(
        "weights.h",
        "a row goes on where a lane stopped",
        "kept[half] += CountBits(quad[i]);",
        "kept[half] += i == t ? CountBits(mine) : 0;",
    ),
    Fault(
        "weights.h",
        "no barrier before a tile is filled again",
        "    SyncBlock();  // the last tile has been read\n",
        "",
    ),
    Fault(
        "weights.h",
        "no barrier before a tile is read",
        "    WaitForCopies<0>();\n    SyncBlock();\n",
        "    WaitForCopies<0>();\n",
    ),
    Fault(
        "weights.h",
        "what has no room is written",
        "    if (begin + i >= end) return;\n",
        "",
    ),
    Fault(
        "call.h",
        "a bias in units of the score",
        "*bias = unit * LoadBias(",
        "*bias = LoadBias(",
    ),
    Fault(
        "call.h",
        "a bias of -inf is a number",
        "return *bias != -kInfinity;",
        "return true;",
        harmless="a score of -inf has no weight either; only a product of NaN or inf beside such a "
        "bias would show it, which no drawn problem has",
    ),
    Fault(
        "dense_backward.h",
        "keys: the bias is left out",
        "        float z = head.Score(view.factor, product, distance);\n"
        "        if (kGeneral) z += bias;\n",
        "        const float z = head.Score(view.factor, product, distance);\n",
    ),
    Fault(
        "bias.h",
        "no barrier before a tile is filled again",
        "          SyncBlock();  // the last tile has been read\n",
        "",
    ),
    Fault(
        "bias.h",
        "no barrier before a tile is read",
        "          WaitForCopies<0>();\n          SyncBlock();\n",
        "          WaitForCopies<0>();\n",
    ),
    Fault(
        "bias.h",
        "no barrier before the sums take a tile's place",
        "  SyncBlock();                    // the last tile has been read\n",
        "",
    ),
    Fault(
        "bias.h",
        "no barrier before sums are read",
        "  SyncBlock();\n  // One thread for each sum",
        "  // One thread for each sum",
    ),
    Fault(
        "bias.h",
        "only the first sequence adds to what all share",
        "if (!bias.Sums(0) && b != BlockZ()) continue;",
        "if (b != BlockZ()) continue;",
    ),
    Fault(
        "bias.h",
        "rows beyond the first tile do not count",
        "sums_rows ? call.q_len : own_row + 1;",
        "own_row + 1;",
    ),
    Fault(
        "list.h",
        "Newton's method stops early",
        "if (!(next < top)) continue;",
        "if (!(next < top * 0.99f)) continue;",
    ),
    Fault(
        "list.h",
        "compacting forgets a lane",
        "return Shuffle(before, Lane() | 3);",
        "return Shuffle(before, Lane() | 2);",
    ),
    Fault(
        "list.h",
        "compacting without __syncwarp",
        "    int place = before - kept;\n    SyncWarp();\n",
        "    int place = before - kept;\n",
    ),
    Fault("tile.h", "pieces of a tile are not exchanged", "((piece ^ row) & 7)", "(piece & 7)"),
    Fault(
        "tile.h",
        "weights keep 8 digits",
        "for (int i = 0; i < 4; ++i) {\n        MultiplyMatrices<Type>(total[j + i], low,",
        "for (int i = 0; i < 0; ++i) {\n        MultiplyMatrices<Type>(total[j + i], low,",
    ),
    Fault("tile.h", "a weight of 0 meets NaN", "else if (finite) {", "else if (finite || true) {"),
    Fault(
        "tile.h",
        "the flags' barrier is missing",
        "no ? 1 : 0);\n  SyncBlock();\n",
        "no ? 1 : 0);\n",
    ),
    Fault(
        "tile.h",
        "the total is not divided with the weights",
        "          total[j][2 * half] *= change;\n",
        "",
        "Float16",
    ),
    Fault(
        "tile.h",
        "float32: a tile's rows in another order",
        "8 * j + 2 * t + e, piece",
        "8 * j + t + 4 * e, piece",
        "Float32",
    ),
    Fault(
        "tile.h",
        "float32: weights of the wrong lane",
        "Shuffle(w[i][2 + e], (lane & ~3) + from)",
        "Shuffle(w[i][2 + e], lane)",
        "Float32",
    ),
    Fault(
        "tile.h",
        "float32: the sign is ignored",
        "sign * FloatOf(words.w[i])",
        "FloatOf(words.w[i])",
        "Float32",
    ),
    Fault(
        "dense.h",
        "no barrier before a tile is read, or filled again",
        "        SyncBlock();  // the tile is there, and the last one has been read\n",
        "",
    ),
    Fault(
        "dense.h",
        "no barrier between passes",
        "    SyncBlock();  // the last tile has been read\n",
        "",
    ),
    Fault(
        "dense.h",
        "no barrier before the queries are read",
        "  SyncBlock();  // the queries are there\n",
        "",
    ),
    Fault(
        "dense.h",
        "flags of two tiles at one place",
        "flags.From(turn * kWarps)",
        "flags",
    ),
    Fault(
        "dense.h",
        "sums that are not finite are not looked at again",
        "if (kIsFloat32<Type> || turn != 0) break;",
        "break;",
    ),
    Fault(
        "dense.h",
        "a tile of which a row sees a part counts as visible",
        "key0 + kKeys <= all_end",
        "key0 < all_end",
    ),
    Fault(
        "dense.h",
        "Newton's method stops early",
        "row.Lives() && next < row.top;",
        "row.Lives() && next < row.top * 0.99f;",
    ),
    Fault("dense.h", "the sum is not rescaled", "row.top * change + sum;", "row.top + sum;"),
    Fault(
        "dense.h",
        "the sweep's bound is taken for the threshold's distance",
        "if (top > 0.0f && top < 1.0f) row.top = top;",
        "if (top > 0.0f && top < 1.0f) row.top = 0.5f * top;",
    ),
    Fault(
        "dense_backward.h",
        "no barrier before a tile is read",
        "      SyncBlock();  // the tile is there, and the last one has been read\n",
        "",
    ),
    Fault(
        "dense_backward.h",
        "a tile is filled again while it is read",
        "fetch(next, stage ^ 1);",
        "fetch(next, stage);",
    ),
    Fault(
        "dense_backward.h",
        "large heads: no barrier before a tile is filled again",
        "        SyncBlock();  // the tile has been read\n",
        "",
    ),
    Fault(
        "dense_backward.h",
        "keys: no barrier between heads",
        "    SyncBlock();  // the last head's tiles have been read\n",
        "",
    ),
    Fault(
        "dense_backward.h",
        "the mean of the other row",
        "weight.u * (here - found.mean[half])",
        "weight.u * (here - found.mean[0])",
    ),
    Fault(
        "dense_backward.h",
        "short code: the mean of the other row",
        "weight.u * (dp[j][e] - found.mean[half])",
        "weight.u * (dp[j][e] - found.mean[0])",
    ),
    Fault(
        "dense_backward.h",
        "rows: a tile is whole for some rows of a warp",
        "    if (row.end < whole_end) whole_end = row.end;\n",
        "    if (row.end > whole_begin) whole_end = row.end;\n",
    ),
    Fault(
        "dense_backward.h",
        "keys: a tile is whole for its last row",
        "of_first.end >= warp_behind",
        "of_last.end >= warp_behind",
    ),
    Fault(
        "dense_backward.h",
        "keys: the search for the first row passes it",
        "KeysOf(call.mask, row, row).end <= key0;",
        "KeysOf(call.mask, row, row).end <= key0 + 1;",
    ),
    Fault(
        "dense_backward.h",
        "numbers of any size are moderate",
        "return !Any(!(fabsf(sum) <= kMostFloat));",
        "return true;",
    ),
    Fault(
        "dense_backward.h",
        "numbers of one lane are moderate",
        "return !Any(!(fabsf(sum) <= kMostFloat));",
        "return fabsf(sum) <= kMostFloat;",
    ),
    Fault(
        "dense_backward.h",
        "empty rows have weights",
        "row >= 0 && view.Lives()",
        "row >= 0",
        harmless="a row without keys has begin = end already, and one whose scores are all -inf "
        "has no weight beside a threshold of inf",
    ),
    Fault(
        "dense_backward.h",
        "a key's row is off",
        "half * 8 + Lane() / 4;\n        const float",
        "half * 4 + Lane() / 4;\n        const float",
    ),
    Fault(
        "list_backward.h",
        "rows: a product goes to another entry",
        "mine % Lanes::kAtOnce * kLanes + mine / Lanes::kAtOnce",
        "mine % Lanes::kAtOnce * kLanes + mine % Lanes::kTurns",
    ),
    Fault(
        "list_backward.h",
        "rows: lanes go on with the wrong half of the sums",
        "(upper ? sums[2] : sums[0]) +",
        "(upper ? sums[0] : sums[2]) +",
    ),
    Fault(
        "list_backward.h",
        "sorting: no __syncwarp before counts are written",
        "  SyncWarp();\n  const int rank",
        "  const int rank",
    ),
    Fault(
        "list_backward.h",
        "sorting: no __syncwarp behind an entry",
        "at + CountBits(same));\n  SyncWarp();\n",
        "at + CountBits(same));\n",
    ),
    Fault(
        "list_backward.h",
        "sorting: a rank counts its own lane",
        "CountBits(same & ((1u << Lane()) - 1u));\n  if (in && rank == 0)",
        "CountBits(same & ((2u << Lane()) - 1u));\n  if (in && rank == 1)",
    ),
    Fault(
        "list_backward.h",
        "scan: no barrier before sums are written",
        "    SyncBlock();  // the sums have been read\n",
        "",
    ),
    Fault(
        "list_backward.h",
        "scan: no barrier before sums are read",
        "sums.Store(WarpIndex(), upto);\n    SyncBlock();\n",
        "sums.Store(WarpIndex(), upto);\n",
    ),
    Fault(
        "list_backward.h",
        "order: no barrier before counts are read",
        "    if (put != 0) return;\n    SyncBlock();\n",
        "    if (put != 0) return;\n",
    ),
    Fault(
        "list_backward.h",
        "order: no barrier before places are read",
        "        places[i % 2] += counted;\n      }\n    }\n    SyncBlock();\n",
        "        places[i % 2] += counted;\n      }\n    }\n",
    ),
    Fault(
        "list_backward.h",
        "order: the last key has no end",
        "StoreDevice(begins + kBucket, end);",
        "StoreDevice(begins + kBucket, begin);",
    ),
    Fault(
        "list_backward.h",
        "keys: no __syncwarp before entries are written",
        "    // sums, one by one, to save registers.\n    SyncWarp();\n",
        "",
    ),
    Fault(
        "list_backward.h",
        "keys: no __syncwarp before entries are read",
        "      SyncWarp();\n      entry = entry_at(place);",
        "      entry = entry_at(place);",
    ),
    Fault(
        "list_backward.h",
        "keys: parts are not added up",
        "bit = kLanes; bit < kWarp; bit *= 2) {\n          sums.dk[x]",
        "bit = 2 * kLanes; bit < kWarp; bit *= 2) {\n          sums.dk[x]",
    ),
    Fault(
        "list_backward.h",
        "keys: every warp takes the same part of a key",
        "begin + (whole != 0 ? warp * kWarp : 0)",
        "begin",
    ),
    Fault(
        "list_backward.h",
        "keys: no barrier before parts are read",
        "        SyncBlock();\n        sums.Clear();",
        "        sums.Clear();",
    ),
    Fault(
        "list_backward.h",
        "keys: no barrier before parts are written",
        "        SyncBlock();  // the next key's parts may be written\n",
        "",
    ),
    Fault(
        "gradients.h",
        "the sink has no gradient",
        "return {weight.p, weight.u};",
        "return {weight.p, 0.0f};",
    ),
    Fault(
        "gradients.h",
        "sums over rows: no barrier before a part is read",
        "    SyncBlock();\n    // Parts are written",
        "    // Parts are written",
    ),
    Fault(
        "gradients.h",
        "a term of the gradient in alpha is missing",
        "(r * dp_p - dp_r - eps * (r * dp_l - l * dp_r))",
        "(r * dp_p - dp_r - eps * r * dp_l)",
    ),
    Fault(
        "rows.h",
        "dense rows: no barrier before sums are read",
        "sums.Store(WarpIndex(), sum);\n    SyncBlock();\n",
        "sums.Store(WarpIndex(), sum);\n",
    ),
    Fault(
        "rows.h",
        "a dense row is listed in another's place",
        "before + CountBits(found[j] & ((1u << Lane()) - 1u))",
        "before + Lane()",
    ),
    Fault(
        "rows.h",
        "padding keeps a row that is not its own",
        "row < inside.end)) return;",
        "row <= inside.end)) return;",
    ),
    Fault(
        "call.h", "groups take turns", "head.kv = h / call.group();", "head.kv = h % call.kv_heads;"
    ),
    Fault(
        "call.h",
        "a block belongs to the sequence before",
        "begins[middle] / rows + middle <= block",
        "begins[middle] / rows + middle < block",
    ),
    Fault(
        "call.h",
        "two columns exchanged",
        "static_cast<std::uint32_t>(low) | static_cast<std::uint32_t>(high) << 16",
        "static_cast<std::uint32_t>(high) | static_cast<std::uint32_t>(low) << 16",
    ),
    Fault(
        "run.h",
        "counts of lists are not cleared",
        "    if (counts_ != nullptr) {\n      const auto rows",
        "    if (false) {\n      const auto rows",
    ),
    Fault(
        "pages.h",
        "no barrier before keys are read",
        "    SyncWarp();\n    const int unit",
        "    const int unit",
    ),
    Fault(
        "pages.h",
        "no barrier before values are read",
        "      SyncWarp();\n      if (Any(any))",
        "      if (Any(any))",
    ),
    Fault(
        "pages.h",
        "no barrier before a stage of keys is filled again",
        "SyncWarp();  // the stage may be filled again\n    free",
        "free",
    ),
    Fault(
        "pages.h",
        "no barrier before a stage of values is filled again",
        "SyncWarp();  // the stage may be filled again\n      free",
        "free",
    ),
    Fault(
        "pages.h",
        "waits for a group too few",
        "WaitForCopies<kStages - 1>",
        "WaitForCopies<kStages>",
    ),
    Fault(
        "pages.h",
        "the next page's first key taken for the last one's",
        "Offset(strides, page, kv, key - place * page_size)",
        "Offset(strides, page, kv, (key - place * page_size + 1) % page_size)",
    ),
    Fault(
        "pages.h",
        "a page too many exists",
        "page < 0 || page >= pages ?",
        "page < 0 || page > pages ?",
        harmless="no table here names the page behind the last; pages_test.cc has one",
    ),
    Fault(
        "pages.h",
        "a bound above the threshold",
        "row.peak - most >= 1.0f",
        "row.peak - most >= 0.5f",
    ),
    Fault("pages.h", "candidates too near", "peak - z < reach", "peak - z < reach * 0.9f"),
    Fault(
        "pages.h",
        "a bound above that of all keys",
        "fminf(1.0f, top + kSolveSlack)",
        "fminf(1.0f, top * 0.95f)",
    ),
    Fault(
        "pages.h",
        "no barrier before the threads' largest are read",
        "sums.Store(ThreadIndex(), own);\n  SyncBlock();\n",
        "sums.Store(ThreadIndex(), own);\n",
    ),
    Fault(
        "pages.h",
        "a key that no query sees is copied",
        "key >= begin_ && key + kPageUnit <= end_",
        "key >= begin_",
    ),
    Fault(
        "pages.h",
        "units beside those in one page",
        "keys.page_size % kPageUnit == 0",
        "keys.page_size % 4 == 0",
    ),
    Fault("pages.h", "a lane's pieces exchanged", "(to_ ^ (r & 7))", "(to_ ^ (r & 3))"),
    Fault("pages.h", "a wide table read as a narrow one", "keys_.table.wide ? 1 : 0", "0"),
    Fault(
        "pages.h",
        "the sequence's length forgotten",
        "Head::Clip({0, length}, pages.call.k_len)",
        "Span{0, pages.call.k_len}",
    ),
    Fault(
        "pages.h",
        "queries at the wrong end",
        "  sequence.Align(pages.call.mask);\n",
        "  sequence.shift = pages.call.k_len - sequence.q.end;\n",
    ),
    Fault(
        "pages.h",
        "the group's rows exchanged",
        "(first + i) / call.q_len;",
        "(first + i) % call.group();",
    ),
    Fault(
        "pages.h",
        "a run without its last tile",
        "place.units_begin + pages.run * kTileUnits;",
        "place.units_begin + pages.run * kTileUnits - 1;",
    ),
    Fault(
        "pages.h",
        "another stage's unit of keys",
        "Shared<Words4>(Units::StageByte(stage))",
        "Shared<Words4>(Units::StageByte(free))",
    ),
    Fault(
        "pages.h",
        "a prefix forgets a lane",
        "if (Lane() >= by) upto += before;",
        "if (Lane() > by) upto += before;",
    ),
    Fault(
        "pages.h",
        "a list counts as full too late",
        "count + more > kSolveEntries)",
        "count + more > kSolveEntries + 64)",
    ),
    Fault(
        "pages.h",
        "Newton's method stops early",
        "moves = next < here;",
        "moves = next < here * 0.99f;",
    ),
    Fault("pages.h", "the sink is left out", "if (ThreadIndex() == 0) add(of_sink);", ""),
    Fault(
        "pages.h",
        "sums of values of all warps but one are left out",
        "lives && i < kSolveWarps;",
        "lives && i < 1;",
    ),
    Fault(
        "pages.h",
        "no barrier behind sums of values",
        "static_cast<float>(top), sums);\n      SyncBlock();\n",
        "static_cast<float>(top), sums);\n",
    ),
    Fault(
        "pages.h",
        "no barrier before the room is used again",
        "  SyncBlock();  // the room may be used again\n",
        "",
    ),
    Fault(
        "pages.h",
        "no barrier before the warps' sums are added",
        "  SyncBlock();\n  TSALLIS_LOOP\n  for (int i = ThreadIndex(); i < place.count",
        "  TSALLIS_LOOP\n  for (int i = ThreadIndex(); i < place.count",
    ),
    Fault(
        "pages.h",
        "softmax without its sum",
        "if (alpha == 1.0) {",
        "if (alpha == 0.0) {",
    ),
    Fault(
        "pages.h",
        "sums that are not finite stay",
        "careful || !Any(!finite)) break;",
        "careful || !Any(!finite) || true) break;",
    ),
    Fault(
        "pages.h",
        "a run is not added",
        "i < pages.runs; ++i",
        "i < (pages.runs > 1 ? pages.runs - 1 : 1); ++i",
    ),
    Fault(
        "team.h",
        "no barrier behind the warps' sums",
        "      SyncBlock();\n      TSALLIS_UNROLL\n",
        "      TSALLIS_UNROLL\n",
        room=ROWS,
    ),
    Fault(
        "team.h",
        "one room for all sums",
        "rooms++ % 2 * kRoom",
        "rooms++ * 0",
        room=ROWS,
    ),
    Fault(
        "team.h",
        "a warp's sum is left out",
        "for (int w = 1; w < kWarps; ++w)",
        "for (int w = 1; w < kWarps - 1; ++w)",
        room=ROWS,
    ),
    Fault(
        "team.h",
        "no barrier before sums of the threads before",
        "    SyncBlock();\n    double before = *total;",
        "    double before = *total;",
        room=ROWS,
    ),
    Fault(
        "team.h",
        "threads before of a warp too few",
        "by < kWarp; by *= 2",
        "by < kWarp / 2; by *= 2",
        room=ROWS,
    ),
    Fault(
        "team.h",
        "the last numbers in registers are left out",
        "      if (j < length) visit(i, j);\n",
        "      if (j < length && i < kHeld - 1) visit(i, j);\n",
        room=ROWS,
    ),
    Fault(
        "team.h",
        "+inf is a score",
        'return most == HUGE_VAL ? nan("") : most;',
        "return most;",
        room=ROWS,
    ),
    Fault(
        "kernels.h",
        "Newton's method ends in float32",
        "moves = fabs(step) > 1e-9 * top;",
        "top += step;\n      moves = false;",
        room=ROWS,
    ),
    Fault(
        "kernels.h",
        "Newton's method stops early",
        "moves = next < rough - 1e-6f * rough;",
        "moves = false;",
        harmless="the steps in double go on from there",
        room=ROWS,
    ),
    Fault(
        "kernels.h",
        "a slope of another power",
        "sums[1] += power == 2 ? 2.0 * x : 1.0;",
        "sums[1] += power == 2 ? x : 1.0;",
        room=ROWS,
    ),
    Fault(
        "kernels.h",
        "float32's powers are the last ones",
        "fabs(log_sum) <= kSolved",
        "fabs(log_sum) <= 1e-3",
        room=ROWS,
    ),
    Fault(
        "kernels.h",
        "terms are not mixed",
        "share = above > below ? ",
        "share = above > 2.0 ? ",
        room=ROWS,
    ),
    Fault(
        "kernels.h",
        "normmax without its sum",
        "inverse = 1.0 / team.Sum(sum);\n  }",
        "inverse = 1.0;\n  }",
        room=ROWS,
    ),
    Fault(
        "kernels.h",
        "the largest u of alphas above 2",
        "fmax(most, power < 0.0 ? -p : p)",
        "fmax(most, p)",
        room=ROWS,
    ),
    Fault(
        "kernels.h",
        "a gradient of NaN off the support",
        "if (u > 0.0) sums[1] += u * static_cast<double>(dp.At(i, j));",
        "sums[1] += u * static_cast<double>(dp.At(i, j));",
        room=ROWS,
    ),
    Fault(
        "kernels.h",
        "weights are not computed again",
        "if (call.recompute) {",
        "if (false) {",
        room=ROWS,
    ),
    Fault(
        "kernels.h",
        "alpha's gradient of the other side",
        "if (eps <= 0.5) {",
        "if (eps <= 0.2) {",
        room=ROWS,
    ),
    Fault(
        "other_maps.h",
        "one entry too many of a top k",
        ">= kept) reach = next;",
        "> kept) reach = next;",
        room=ROWS,
    ),
    Fault(
        "other_maps.h",
        "zeros of two kinds",
        "std::bit_cast<std::uint32_t>(x + 0.0f)",
        "std::bit_cast<std::uint32_t>(x)",
        room=ROWS,
    ),
    Fault(
        "other_maps.h",
        "beta has no derivative",
        "*derivative = slope;",
        "*derivative = 0.0;",
        room=ROWS,
    ),
    Fault(
        "other_maps.h",
        "a stick in the other order",
        "const int j = end - 1 - team.Rank();",
        "const int j = length - end + team.Rank();",
        room=ROWS,
    ),
    Fault(
        "kernels.h",
        "a target of -inf",
        "const bool absent = of_target == -HUGE_VAL;",
        "const bool absent = false;",
        room=ROWS,
    ),
    Fault(
        "kernels.h",
        "rows that are ignored",
        "if (target == call.ignore_index) return constant(0.0, 0.0);",
        "",
        room=ROWS,
    ),
    Fault(
        "team.h",
        "temperature of a gradient",
        "const double inverse = 1.0 / call.numbers.temperature;",
        "const double inverse = 1.0;",
        room=ROWS,
    ),
]


def compile_and_run(fault: Fault, library: Path) -> str:
    """What the check said; empty if it found nothing. A fault that changes nothing: as it is."""
    with tempfile.TemporaryDirectory() as folder:
        for room in (ATTENTION, ROWS, CORE):
            shutil.copytree(ROOT / "src" / room, Path(folder) / room)
        path = Path(folder) / fault.room / fault.file
        text = path.read_text()
        if fault.old not in text:
            return f"NOT PLANTED: {fault.old!r} is not in {fault.file}"
        path.write_text(text.replace(fault.old, fault.new))
        program = Path(folder) / "check"
        command = ["g++", "-std=c++20", "-O1", "-w", "-fopenmp", "-ffp-contract=off"]
        command += [f"-DTSALLIS_MUTANT_TYPE={fault.type}", f"-I{folder}", f"-I{ROOT}/src"]
        command += ["-DTSALLIS_MUTANT_ROWS"] if fault.room == ROWS else []
        command += [f"-I{ROOT}/include", "-DHWY_SHARED_DEFINE", "-DHWY_COMPILE_ALL_ATTAINABLE"]
        command += [str(ROOT / "scripts/mutate_cuda.cc"), str(library), "-lhwy", "-o", str(program)]
        cudart = Path("/usr/local/cuda/lib64/libcudart_static.a")
        if cudart.is_file():
            command += [str(cudart), "-ldl", "-lrt", "-lpthread"]
        built = subprocess.run(command, capture_output=True, text=True)
        if built.returncode != 0:
            return f"NOT COMPILED: {built.stderr.strip().splitlines()[0]}"
        try:
            ran = subprocess.run([program], capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return "never ends"
        if ran.returncode < 0:
            return f"ended by signal {-ran.returncode}"
        return ran.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("words", nargs="*", help="only faults whose file or name holds one")
    parser.add_argument("--library", type=Path, default=ROOT / "build-kernels/lib/libtsallis.a")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    chosen = [
        fault
        for fault in FAULTS
        if not given.words or any(word in fault.file + " " + fault.name for word in given.words)
    ]
    for room in {ROWS if fault.room == ROWS else ATTENTION for fault in chosen}:
        if wrong := compile_and_run(
            Fault("run.h", "", "#pragma once", "#pragma once", room=room), given.library
        ):
            print(f"the kernels of {room} as they are: {wrong}")
            return 1
    rows, failures = [], 0
    for fault in chosen:
        said = compile_and_run(fault, given.library)
        planted = not said.startswith("NOT ")
        good = planted and (said == "") == (fault.harmless != "")
        failures += not good
        state = "found" if said else "harmless" if fault.harmless else "NOT FOUND"
        print(f"{state if planted else said:<9} {fault.file}: {fault.name}: {said}", flush=True)
        rows.append({"file": fault.file, "fault": fault.name, "said": said})
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"{len(chosen)} faults, {failures} not as they should be")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
