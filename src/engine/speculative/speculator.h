// Drafts on the device's side of a step: proposes them after sampling, keeps them with the distributions they were
// drawn from until the sequence's next step, and verifies them there (speculative.md §1.4, §2, §3). Owned by
// DeviceStep, on its thread; a lane is a state slot.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/api.h"
#include "engine/constraint.h"
#include "engine/runner.h"
#include "engine/sampler.h"
#include "engine/sequence.h"
#include "engine/speculative/stats.h"
#include "engine/speculative/verify.h"

namespace di::engine {

// The drafts of a lane for its next step; all vectors equally long. Empty: none.
struct LaneDrafts {
  std::vector<int32_t> tokens;
  std::vector<Distribution> q;     // empty where the target chooses by itself (chooses_alone())
  std::vector<float> confidences;  // that a draft is accepted when those before it are
  int32_t size() const { return static_cast<int32_t>(tokens.size()); }
};

// Whether rows take the target's own choice and accept a draft that equals it. Greedy requests do, and those with a
// seed of their own: the token of each position is the draw of its own uniform from the target's distribution, as
// without speculation. Rejection sampling has that distribution too, but which of its three draws makes a position's
// token depends on how many drafts were verified, and so on measured times (engine.md §5.4 gets equal tokens from a
// fixed length only). Drafts are drawn with the uniform their position will use, so that they meet the target's choice
// about as often as the two distributions overlap.
bool chooses_alone(const SamplingParams& params);

struct VerifiedRows {
  std::vector<OutputToken> tokens;  // accepted drafts, then one sampled token
  int32_t accepted = 0;
  bool failed = false;             // no token can follow
  bool finite = true;              // failed: although the model's logits have no NaN
  std::vector<float> accept_prob;  // per verified draft up to the first refused one
};

// One sequence to draft for: `tokens` end with the token just sampled. matcher: after them; null without a constraint.
struct DraftRequest {
  int32_t slot = 0;
  uint64_t sequence = 0;
  const SequenceSpec* spec = nullptr;
  std::span<const int32_t> tokens;
  int32_t window_start = 0;
  const structured::Matcher* matcher = nullptr;
};

class Speculator {
 public:
  // masks: idle whenever propose() is called.
  Speculator(Runner& runner, MaskFiller& masks, int32_t max_drafts);

  int32_t max_drafts() const { return max_drafts_; }
  const LaneDrafts& drafts(int32_t slot) const { return lanes_[static_cast<size_t>(slot)]; }
  void forget(int32_t slot);

  // Shares of `total` rows among lanes by their confidences; a lane without drafts gets one row unless there are rows
  // to spare. Lane -1: none.
  std::vector<int32_t> share_rows(int32_t total, std::span<const int32_t> slots) const;

  // The rows of one sequence: the logits after its last token and after each of `rows - 1` drafts of its lane.
  // `tokens`: the sequence with these drafts at its end. masks: of the rows, null without a constraint; a draft that it
  // refuses has probability 0, so no row behind it counts.
  VerifiedRows verify(int32_t slot, const SequenceSpec& spec, std::span<const int32_t> tokens, int32_t rows,
                      const LogitsView& logits, const MaskJob* masks);

  // Replaces the lanes' drafts. Those of a constrained text obey its constraint: each is drawn from the draft's
  // distribution under the mask of its position, and that is the q it is verified with. Error: the runner's.
  Result<void> propose(std::span<const DraftRequest> requests);

 private:
  // A request's text with its drafts so far.
  struct Text {
    std::optional<structured::Matcher> matcher;  // nothing: not constrained
    const structured::Compiled* constraint = nullptr;
    bool open = true;  // more drafts may follow
  };
  bool sample_draft(const DraftRequest& request, std::span<const float> logits, float confidence, const MaskJob* mask,
                    LaneDrafts& lane);
  void begin_masks();
  void draw_drafts(std::span<const DraftRequest> requests, const LogitsView& logits);
  // What a row is drawn from: logits, of the tokens `ids` only unless there are none.
  struct Row {
    std::span<const float> logits;
    std::span<const int32_t> ids;
  };
  Row processed(std::span<const float> logits, const SequenceSpec& spec, std::span<const int32_t> tokens,
                const MaskJob* masks, size_t row);

  Runner& runner_;
  MaskFiller& masks_;
  int32_t max_drafts_;
  Sampler sampler_;
  Verifier verifier_;
  std::vector<LaneDrafts> lanes_;  // [slots]
  std::vector<float> row_;
  std::vector<int32_t> ids_;
  std::vector<int32_t> text_;
  std::vector<int32_t> previous_;
  std::vector<float> confidences_;
  std::vector<Text> texts_;  // of the requests
};

}  // namespace di::engine
