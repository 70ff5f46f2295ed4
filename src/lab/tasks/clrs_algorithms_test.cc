// Runs as text: character by character those of the benchmark's own package, and what they say.
#include "lab/tasks/clrs_algorithms.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <queue>
#include <regex>
#include <set>

#include "lab/base/paths.h"
#include "lab/tasks/sequence_tasks.h"
#include "lab/testing/lab_test_support.h"

namespace tsallis::lab {
namespace {

const ClrsAlgorithm& Find(const std::string& name) {
  const auto& all = ClrsAlgorithms();
  return *std::find_if(all.begin(), all.end(),
                       [&](const ClrsAlgorithm& algorithm) { return algorithm.name == name; });
}

// The values of a field of a question: "key" of "key: [0.1 0.2], target: 0.3".
std::vector<double> Field(const std::string& inputs, const std::string& name) {
  const std::size_t begin = ("\n" + inputs).find("\n" + name + ": ") != std::string::npos
                                ? name.size() + 2
                                : inputs.find(", " + name + ": ") + name.size() + 4;
  const std::string text = inputs.substr(begin, inputs.find(": ", begin) - begin);
  std::vector<double> values;
  const std::regex number("-?[0-9.]+");
  for (std::sregex_iterator it(text.begin(), text.end(), number), end; it != end; ++it) {
    values.push_back(std::strtod(it->str().c_str(), nullptr));
  }
  return values;
}

ClrsInputs InputsOf(const std::string& name, const std::string& question) {
  const std::string line = question.substr(question.find('\n') + 1);
  const auto whole = [&](const std::string& field) {
    const std::vector<double> values = Field(line, field);
    return std::vector<std::int64_t>(values.begin(), values.end());
  };
  ClrsInputs inputs;
  if (name == "activity_selector") {
    inputs.key = Field(line, "s");
    inputs.finish = Field(line, "f");
  } else if (name == "bfs") {
    inputs.source = whole("s").at(0);
    const std::vector<std::int64_t> cells = whole("A");
    const std::int64_t n = std::lround(std::sqrt(cells.size()));
    for (auto row = cells.begin(); row != cells.end(); row += n) {
      inputs.graph.emplace_back(row, row + n);
    }
  } else if (name == "naive_string_matcher") {
    inputs.letters = whole("key");
    const std::vector<std::int64_t> part = whole("string");
    inputs.pattern = std::find(part.begin(), part.end(), 1) - part.begin();
  } else {
    inputs.key = Field(line, "key");
    if (name == "binary_search") inputs.target = Field(line, "target").at(0);
  }
  return inputs;
}

TEST(ClrsAlgorithms, WriteWhatTheBenchmarkWrites) {
  std::ifstream in(SourceDir() / "src/lab/tasks/testing/clrs_text.json");
  const auto examples = nlohmann::json::parse(in).at("examples");
  std::map<std::string, int> seen;
  for (const auto& example : examples) {
    const std::string question = example.at("question");
    const std::string name = question.substr(0, question.find(':'));
    const ClrsInputs inputs = InputsOf(name, question);
    const ClrsText plain = WriteClrs(Find(name), inputs, false);
    EXPECT_EQ(plain.question, question);
    EXPECT_EQ(plain.answer + "\n\n", example.at("answer"));
    const ClrsText traced = WriteClrs(Find(name), inputs, true);
    EXPECT_EQ(traced.question, example.at("traced_question"));
    EXPECT_EQ(traced.answer + "\n\n", example.at("traced_answer"));
    ++seen[name];
  }
  EXPECT_EQ(seen.size(), ClrsAlgorithms().size());
  for (const auto& [name, count] : seen) EXPECT_GE(count, 3) << name;
}

// The answers by other ways than the algorithms go.
TEST(ClrsAlgorithms, AnswerWhatIsRight) {
  for (std::int64_t n = 4; n <= 20; ++n) {
    for (std::int64_t i = 0; i < 20; ++i) {
      RandomStream random(5, Purpose::kTrain, n * 100 + i);
      const auto answer = [&](const char* name, ClrsInputs& inputs) {
        inputs = Find(name).draw(random, n);
        return WriteClrs(Find(name), inputs, false).answer;
      };
      ClrsInputs inputs;
      const std::int64_t least = std::stoll(answer("minimum", inputs));
      EXPECT_EQ(inputs.key[least], *std::min_element(inputs.key.begin(), inputs.key.end()));
      const std::int64_t place = std::stoll(answer("binary_search", inputs));
      const auto bound = std::lower_bound(inputs.key.begin(), inputs.key.end(), inputs.target);
      EXPECT_EQ(place, std::min(bound - inputs.key.begin(), n - 1));
      for (const char* sort : {"bubble_sort", "insertion_sort"}) {
        std::vector<double> values = Field("key: " + answer(sort, inputs), "key");
        std::sort(inputs.key.begin(), inputs.key.end());
        EXPECT_EQ(values, inputs.key);
      }
      const std::string sub = answer("find_maximum_subarray_kadane", inputs);
      const std::size_t low = std::stoull(sub), high = std::stoull(sub.substr(sub.find(',') + 1));
      const auto sum = [&](std::size_t from, std::size_t to) {
        double total = 0.0;
        for (std::size_t k = from; k <= to; ++k) total += inputs.key[k];
        return total;
      };
      for (std::size_t a = 0; a < inputs.key.size(); ++a) {
        for (std::size_t b = a; b < inputs.key.size(); ++b) {
          EXPECT_LE(sum(a, b), sum(low, high) + 1e-12);
        }
      }
      const std::int64_t match = std::stoll(answer("naive_string_matcher", inputs));
      const auto pattern = inputs.letters.begin() + inputs.pattern;
      EXPECT_EQ(std::search(inputs.letters.begin(), pattern, pattern, inputs.letters.end()) -
                    inputs.letters.begin(),
                match);
      EXPECT_LT(match, inputs.pattern);
      // Selected activities do not overlap.
      const std::vector<double> selected = Field("x: " + answer("activity_selector", inputs), "x");
      for (std::int64_t a = 0; a < n; ++a) {
        for (std::int64_t b = 0; b < a; ++b) {
          EXPECT_TRUE(selected[a] * selected[b] == 0.0 || inputs.key[a] >= inputs.finish[b] ||
                      inputs.key[b] >= inputs.finish[a])
              << a << " " << b;
        }
      }
      // Parents in a search by breadth are one step nearer to the source.
      const std::vector<double> parents = Field("x: " + answer("bfs", inputs), "x");
      std::vector<std::int64_t> distance(n, -1);
      std::queue<std::int64_t> front({inputs.source});
      distance[inputs.source] = 0;
      for (; !front.empty(); front.pop()) {
        for (std::int64_t j = 0; j < n; ++j) {
          if (inputs.graph[front.front()][j] == 0 || distance[j] >= 0) continue;
          distance[j] = distance[front.front()] + 1;
          front.push(j);
        }
      }
      for (std::int64_t j = 0; j < n; ++j) {
        if (distance[j] <= 0) {
          EXPECT_EQ(parents[j], j);
        } else {
          EXPECT_EQ(distance[parents[j]], distance[j] - 1);
        }
      }
    }
  }
}

TEST(ClrsText, NamesWhatEachSampleIs) {
  const TaskPointer task = MakeSequenceTask("clrs-text");
  const std::vector<std::string> groups = task->Groups();
  ASSERT_EQ(groups.size(), 8U);
  std::set<std::size_t> seen;
  std::set<std::size_t> large;
  for (std::int64_t i = 0; i < 200; ++i) {
    for (const std::int64_t n : {4, 30}) {
      const Sample sample = task->Draw(1, Split::kTest, i, n);
      const std::size_t group = task->GroupOf(sample.tokens.data(), std::ssize(sample.tokens));
      ASSERT_LT(group, groups.size());
      std::string text;
      for (std::size_t k = 1; k < 40; ++k) text += static_cast<char>(sample.tokens[k]);
      EXPECT_TRUE(text.starts_with(groups[group] + ":\n")) << text;
      (n == 4 ? seen : large).insert(group);
    }
  }
  EXPECT_EQ(seen.size(), 8U);
  EXPECT_EQ(large.size(), 6U);  // the benchmark sorts fewer numbers
  EXPECT_EQ(task->Word('\n'), "\\n");
  EXPECT_EQ(task->Word(' '), "_");
  EXPECT_EQ(task->Word('7'), "7");
  const TaskPointer one =
      MakeSequenceTask("clrs-text", {"algorithms=[\"minimum\"]", "traces=false"});
  EXPECT_EQ(one->Groups(), std::vector<std::string>{"minimum"});
  ExpectContains(UsageErrorOf([&] { one->CheckLength(65); }), "expected 4 to 64");
  ExpectContains(UsageErrorOf([] { MakeSequenceTask("clrs-text", {"algorithms=[\"dfs\"]"}); }),
                 "unknown algorithm \"dfs\"");
  ExpectContains(
      UsageErrorOf([] { MakeSequenceTask("clrs-text", {"algorithms=[\"bfs\", \"bfs\"]"}); }),
      "there twice");
  ExpectContains(UsageErrorOf([] { MakeSequenceTask("clrs-text", {"algorithms=[]"}); }),
                 "at least one algorithm");
}

}  // namespace
}  // namespace tsallis::lab
