// Which sequences of a call on pages go through lists of keys, and which go elsewhere.
#include <string>
#include <vector>

#include "attention/cpu/decode/decode.h"
#include "attention/features.h"
#include "attention/kernels.h"
#include "attention/pages.h"

namespace tsallis {

bool ServedByLists(const AttentionParams& call, std::string* why) {
  // Strided columns can only be those of queries, which it reads as they come.
  const Features asked = FeaturesOf(call).Without({Feature::kStridedColumns});
  *why = Refusal(kDecodeAttention.serves, call, asked, Pass::kForward);
  return why->empty();
}

namespace {

// Queries that each score a part of their keys count as that part, and so many that count as more
// than MostQueries() without bytes take less time packed. The newest query of a sequence tells how
// large the part is. Marks the sequences to be packed; of the others that query is answered, and
// leaves its block.
void LeaveFlat(const Context& context, const AttentionParams& call, const decode::Screens& screens,
               const AttentionOutputs& outputs, std::vector<RowBlock>* rows,
               std::vector<std::uint8_t>* alone) {
  std::vector<RowBlock> newest;
  for (RowBlock& block : *rows) {
    const std::int64_t keys = Sequence::Of(call, block.b).k.size();
    if (block.q.size() <= decode::MostQueries(call, /*bytes=*/false, keys)) continue;
    newest.push_back({block.b, block.h, {block.q.end - 1, block.q.end}});
    --block.q.end;
  }
  if (newest.empty()) return;
  std::vector<std::int64_t> scored(
      static_cast<std::size_t>(ArrayBatch(call) * call.heads * call.q_len));
  decode::Account account;
  account.scored = scored.data();
  decode::Forward(context, call, screens, outputs, account, newest, nullptr);
  std::vector<std::int64_t> found(static_cast<std::size_t>(call.batch)), most(found);
  for (const RowBlock& block : newest) {
    const Sequence sequence = Sequence::Of(call, block.b);
    const std::int64_t row = block.q.begin, index = RowIndex(call, sequence, block.h, row);
    const auto b = static_cast<std::size_t>(block.b);
    found[b] += sequence.q.size() * scored[static_cast<std::size_t>(index)];
    most[b] += decode::MostQueries(call, /*bytes=*/false, sequence.k.size()) *
               sequence.VisibleKeys(call.mask, row).size();
  }
  for (std::size_t b = 0; b < alone->size(); ++b) {
    if (found[b] > most[b]) (*alone)[b] = 1;
  }
  std::erase_if(*rows, [&](const RowBlock& block) {
    return (*alone)[static_cast<std::size_t>(block.b)] != 0;
  });
}

}  // namespace

void RunForwardOfSequences(const Context& context, const AttentionParams& call,
                           const decode::Screens& screens, const AttentionOutputs& outputs) {
  std::string why;
  const bool lists = ServedByLists(call, &why);
  if (!lists && call.q_len == 1 && !call.ranges.packed) {  // one kernel has them all
    RunForward(context, call, outputs);
    return;
  }
  std::vector<RowBlock> rows, vast;
  std::vector<std::uint8_t> alone(static_cast<std::size_t>(call.batch), 1);
  for (const RowBlock& block : AllRows(call)) {
    const std::int64_t keys = Sequence::Of(call, block.b).k.size();
    if (!lists || block.q.size() > decode::MostQueries(call, screens.bytes(), keys)) continue;
    rows.push_back(block);
    alone[static_cast<std::size_t>(block.b)] = 0;
  }
  LeaveFlat(context, call, screens, outputs, &rows, &alone);
  // With bytes vast scores stay as they are: what to do with them is not known before all are read.
  if (!rows.empty()) {
    decode::Forward(context, call, screens, outputs, {}, rows, screens.bytes() ? nullptr : &vast);
  }
  for (const RowBlock& block : vast) alone[static_cast<std::size_t>(block.b)] = 1;
  for (std::int64_t b = 0; b < call.batch; ++b) {
    if (alone[static_cast<std::size_t>(b)] == 0 || Sequence::Of(call, b).q.size() == 0) continue;
    RunForwardOfSequence(context, call, outputs, b);
  }
}

}  // namespace tsallis
