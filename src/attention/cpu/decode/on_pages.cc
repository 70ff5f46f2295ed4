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
