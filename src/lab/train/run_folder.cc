#include "lab/train/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "lab/base/errors.h"
#include "lab/base/files.h"

namespace tsallis::lab {
namespace {

namespace fs = std::filesystem;

std::int64_t StepOf(const TensorFile& file, const fs::path& path) {
  const auto found = file.metadata.find("step");
  std::int64_t step = -1;
  if (found != file.metadata.end()) {
    const std::string& text = found->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
    if (error != std::errc() || end != text.data() + text.size()) step = -1;
  }
  if (step < 0) throw std::runtime_error(path.string() + ": names no step: not a checkpoint");
  return step;
}

}  // namespace

nlohmann::ordered_json RunFolder::Settings() const {
  const nlohmann::ordered_json found = ReadJson(path_ / "config.json");
  return found.is_object() ? found : nlohmann::ordered_json();
}

namespace {

// "train.lr was 0.001, is 0.002; steps was 5, is 6".
std::string Differences(const nlohmann::ordered_json& found,
                        const nlohmann::ordered_json& settings) {
  if (!found.is_object()) return "its config.json is damaged";
  const nlohmann::ordered_json was = found.flatten();
  const nlohmann::ordered_json is = settings.flatten();
  std::vector<std::string> differences;
  const auto compare = [&](const std::string& pointer) {
    const auto text = [&](const nlohmann::ordered_json& all) {
      return all.contains(pointer) ? all[pointer].dump() : "absent";
    };
    if (text(was) == text(is)) return;
    std::string key = pointer.substr(1);
    std::replace(key.begin(), key.end(), '/', '.');
    differences.push_back(fmt::format("{} was {}, is {}", key, text(was), text(is)));
  };
  for (const auto& [pointer, unused] : is.items()) compare(pointer);
  for (const auto& [pointer, unused] : was.items()) {
    if (!is.contains(pointer)) compare(pointer);
  }
  return fmt::format("{}", fmt::join(differences, "; "));
}

}  // namespace

void RunFolder::ForEachMetrics(const std::function<void(const nlohmann::json&)>& visit) const {
  std::ifstream in(path_ / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    const auto entry = nlohmann::json::parse(line, nullptr, false);
    if (entry.is_object()) visit(entry);
  }
}

double RunFolder::Seconds() const {
  double seconds = 0.0;
  ForEachMetrics([&](const nlohmann::json& entry) { seconds = entry.value("seconds", seconds); });
  return seconds;
}

FolderLock::FolderLock(const fs::path& folder) {
  MakeFolder(folder);
  const fs::path path = folder / "lock";
  file_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file_ < 0) {
    throw std::runtime_error(path.string() + ": cannot be written: " + std::strerror(errno));
  }
  // The lock belongs to the open file, not to the process: jobs of one process exclude each other
  // too.
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  if (fcntl(file_, F_OFD_SETLK, &lock) == 0) return;
  if (errno != EAGAIN && errno != EACCES) return;  // this file system has no locks
  close(file_);
  throw std::runtime_error(folder.string() + ": another process is at work on this run");
}

FolderLock::~FolderLock() { close(file_); }

void RunFolder::Claim(const nlohmann::ordered_json& settings) const {
  const fs::path path = path_ / "config.json";
  MakeFolder(path_);
  if (fs::exists(path)) {
    const nlohmann::ordered_json found = Settings();
    if (found == settings) return;
    throw UsageError(
        fmt::format("{} holds a run with other settings ({}); remove it or choose another folder",
                    path_.string(), Differences(found, settings)));
  }
  WriteFileAtomically(path, settings.dump(2) + "\n");
}

void RunFolder::Save(const Checkpoint& checkpoint) const {
  const std::string name = fmt::format("step-{:08}", checkpoint.step);
  const fs::path folder = path_ / name;
  fs::create_directories(folder);
  WriteTensors(folder / "model.safetensors", checkpoint.model);
  WriteTensors(folder / "state.safetensors", checkpoint.state);
  const fs::path aside = path_ / "last.tmp";
  fs::remove(aside);
  fs::create_directory_symlink(name, aside);
  fs::rename(aside, path_ / "last");
  for (const fs::directory_entry& entry : fs::directory_iterator(path_)) {
    const std::string other = entry.path().filename().string();
    if (other.starts_with("step-") && other != name) fs::remove_all(entry.path());
  }
}

std::optional<Checkpoint> RunFolder::Load() const {
  const fs::path last = path_ / "last";
  if (!fs::exists(last)) return std::nullopt;
  Checkpoint checkpoint;
  checkpoint.model = ReadTensors(last / "model.safetensors");
  checkpoint.state = ReadTensors(last / "state.safetensors");
  checkpoint.step = StepOf(checkpoint.state, last / "state.safetensors");
  if (StepOf(checkpoint.model, last / "model.safetensors") != checkpoint.step) {
    throw std::runtime_error(last.string() + ": model and state are of different steps");
  }
  return checkpoint;
}

void RunFolder::SaveBest(const TensorFile& model) const {
  fs::create_directories(BestPath().parent_path());
  WriteTensors(BestPath(), model);
}

void RunFolder::Finish(const TensorFile& model) const {
  WriteTensors(FinalPath(), model);
  for (const fs::directory_entry& entry : fs::directory_iterator(path_)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") || name == "last") fs::remove_all(entry.path());
  }
}

void CopyParameters(const TensorFile& file, const fs::path& path,
                    const std::vector<std::pair<std::string, at::Tensor>>& parameters) {
  for (const auto& [name, parameter] : parameters) {
    const at::Tensor* stored = file.Find(name);
    if (stored == nullptr) {
      throw std::runtime_error(path.string() + ": has no tensor \"" + name +
                               "\": weights of another model");
    }
    // Weights may be kept in a half or a quarter of the size; what goes on training has all bits.
    const bool is_short =
        stored->scalar_type() == at::kBFloat16 || stored->scalar_type() == at::kFloat8_e4m3fn;
    const bool type = stored->scalar_type() == parameter.scalar_type() ||
                      (is_short && parameter.is_floating_point());
    if (stored->sizes() != parameter.sizes() || !type) {
      throw std::runtime_error(path.string() + ": tensor \"" + name +
                               "\" has another shape or type than the model's");
    }
    at::Tensor(parameter).copy_(*stored);
  }
}

void LoadParameters(const fs::path& path,
                    const std::vector<std::pair<std::string, at::Tensor>>& parameters) {
  CopyParameters(ReadTensors(path), path, parameters);
}

namespace {

// The step of a line of metrics.jsonl; -1: it is damaged.
std::int64_t StepOf(const std::string& line) {
  const auto entry = nlohmann::json::parse(line, nullptr, false);
  const auto step = entry.is_object() ? entry.find("step") : entry.end();
  return step != entry.end() && step->is_number_integer() ? step->get<std::int64_t>() : -1;
}

}  // namespace

Metrics::Metrics(const fs::path& path, std::int64_t step, bool tensorboard) {
  std::vector<std::string> lines;
  std::string damaged, later;
  if (std::ifstream in(path); in) {
    for (std::string line; std::getline(in, line);) {
      const std::int64_t at = StepOf(line);
      if (at >= 0 && at <= step) {
        // Steps only rise: a line before this one that names a later step is damaged.
        damaged += std::exchange(later, "");
        lines.push_back(line);
      } else if (at >= 0) {
        later += line + "\n";
      } else if (!in.eof()) {  // else half a line, which a killed run leaves
        damaged += line + "\n";
      }
    }
  }
  if (!damaged.empty()) {
    damaged_ = std::count(damaged.begin(), damaged.end(), '\n');
    const fs::path aside = fs::path(path).replace_extension("damaged");
    std::ofstream out(aside, std::ios::app | std::ios::binary);
    out << damaged << std::flush;
    if (!out) throw std::runtime_error(aside.string() + ": writing failed (is the disk full?)");
  }
  WriteFileAtomically(path, fmt::format("{}{}", fmt::join(lines, "\n"), lines.empty() ? "" : "\n"));
  out_.open(path, std::ios::app);
  if (!tensorboard) return;
  const bool first =
      std::none_of(fs::directory_iterator(path.parent_path()), {}, [](const auto& entry) {
        return entry.path().filename().string().starts_with("events.out.tfevents.");
      });
  events_.emplace(path.parent_path(), step);
  if (!first) return;
  for (const std::string& line : lines) AddEvents(line);
}

void Metrics::Add(const std::string& line) {
  out_ << line << "\n" << std::flush;
  if (!out_) throw std::runtime_error("metrics.jsonl: writing failed (is the disk full?)");
  if (events_) AddEvents(line);
}

void Metrics::AddEvents(const std::string& line) {
  const auto entry = nlohmann::ordered_json::parse(line);
  const std::int64_t step = entry.at("step");
  for (const auto& [name, value] : entry.items()) {
    if (name == "step" || name == "seconds") continue;  // TensorBoard has clocks of its own
    if (value.is_number()) events_->Add(step, name, value);
    if (!value.is_object()) continue;
    for (const auto& [inner, number] : value.items()) {
      events_->Add(step, fmt::format("{}/{}", name, inner), number);
    }
  }
}

}  // namespace tsallis::lab
