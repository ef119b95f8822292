// What the compiler read of a schema, for tests of its completeness.
#pragma once

#include <string>
#include <vector>

#include "structured/structured.h"

namespace di::structured {

// compile(), and the JSON pointers of the keywords that a rule read, in no order. A keyword of a subschema that is used
// is enforced, without meaning where it stands, or refused; one that is missing here was overlooked. Subschemas that no
// text can reach are not read, and annotations are no rule's.
Expected<CompiledRef> compile_recorded(const VocabularyRef& vocabulary, const ConstraintSpec& spec,
                                       const Limits& limits, std::vector<std::string>& visited);

}  // namespace di::structured
