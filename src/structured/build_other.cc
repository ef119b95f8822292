#include "structured/front_ends.h"

namespace di::structured {

Expected<RuleId> build_other(Build&, const ConstraintSpec&) { return refuse("invalid_grammar", "not built yet"); }

}  // namespace di::structured
