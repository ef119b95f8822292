// Runs folders of structured-output cases (vectors/structured, its README): schema cases with instances and
// step-by-step scenarios, known by their members. Used by `deepinfer-conformance structured DIR` and by the tests.
//
// Order of members: a schema is compiled with the options as they are by default, members in the schema's order
// (structured-output.md §4.5). The makers of the cases reordered instances as far as they could see; below references,
// patterns and alternatives members may stand in another order, of which JSON Schema says nothing. So a text that is
// refused in the schema's order, valid or not, is judged again with members in any order, under everything else that
// the schema says; how many needed that is counted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "structured/structured.h"

namespace di::structured {

// One schema case or scenario.
struct CaseOutcome {
  std::string id;
  std::string suite;
  int tier = 0;
  bool compiled = false;
  std::string refusal;  // the error's text when not compiled
  std::string code;
  int valid_accepted = 0;
  int valid_in_order = 0;  // of these, with the members in the schema's order
  int valid_refused = 0;   // without soft ones
  int invalid_accepted = 0;
  int invalid_refused = 0;
  bool passed = false;
  std::vector<std::string> failures;  // what was expected and found
  double compile_ms = 0;              // CPU time of the thread
  double first_mask_us = 0;
  std::vector<float> mask_us;  // every mask of every valid instance
};

struct SuiteTotals {
  int cases = 0, passed = 0, compiled = 0, tier1 = 0, tier1_compiled = 0;
  int valid_accepted = 0, valid_in_order = 0, valid_refused = 0, invalid_accepted = 0, invalid_refused = 0;

  void add(const CaseOutcome& o);
  std::string text() const;  // one line
};

struct ConformanceOptions {
  bool masks = true;  // every token is looked up in its mask, else only accepted
  Limits limits;
};

// Every line of the *.jsonl files of dir, in order; a file that cannot be read is one failed outcome.
std::vector<CaseOutcome> run_structured_cases(const std::string& dir, const VocabularyRef& vocabulary,
                                              const ConformanceOptions& options = {});
// One file.
std::vector<CaseOutcome> run_structured_file(const std::string& path, const VocabularyRef& vocabulary,
                                             const ConformanceOptions& options = {});

}  // namespace di::structured
