// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The device in torch.profiler: what workers compute becomes events of the device, and what the client does beside
// recording becomes events of its runtime. PyTorch 2.11 has no registry for such profilers.
#if __has_include(<torch/csrc/profiler/standalone/privateuse1_profiler.h>)

#ifndef USE_KINETO
#define USE_KINETO
#endif
#include <libkineto.h>
#include <output_base.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>
#include <unistd.h>

#include <charconv>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device/client/Profile.h"

namespace mycelya {
namespace {

using libkineto::ActivityType;

// A line of a profile: see runtime/profile.go.
struct Event {
  std::string_view track, name, place;
  int64_t device = 0, began = 0, ended = 0, caller = 0, call = 0, program = 0;
};

std::string_view Take(std::string_view& line) {
  const size_t tab = line.find('\t');
  const std::string_view field = line.substr(0, tab);
  line.remove_prefix(tab == std::string_view::npos ? line.size() : tab + 1);
  return field;
}

int64_t TakeNumber(std::string_view& line) {
  const std::string_view field = Take(line);
  int64_t n = 0;
  std::from_chars(field.data(), field.data() + field.size(), n);
  return n;
}

Event Parse(std::string_view line) {
  Event e;
  e.track = Take(line);
  e.device = TakeNumber(line);
  if (e.track == "dropped") return e;
  e.began = TakeNumber(line);
  e.ended = TakeNumber(line);
  e.caller = TakeNumber(line);
  e.call = TakeNumber(line);
  e.program = TakeNumber(line);
  e.name = Take(line);
  e.place = Take(line);
  return e;
}

// The rows of a trace: below a device, and those of the client.
enum Row : int64_t { kOps = 0, kPrograms = 1, kCompile = 2, kSend = 3, kReceive = 4 };

class Session : public libkineto::IActivityProfilerSession {
 public:
  void start() override {
    try {
      BeginProfile();
      begun_ = true;
      status_ = libkineto::TraceStatus::RECORDING;
    } catch (const std::exception& e) {
      errors_.emplace_back(e.what());
      status_ = libkineto::TraceStatus::ERROR;
    }
  }

  void stop() override {
    if (!begun_) return;
    begun_ = false;
    text_ = EndProfile();
    status_ = libkineto::TraceStatus::PROCESSING;
  }

  std::vector<std::string> errors() override { return errors_; }

  void processTrace(libkineto::ActivityLogger& logger) override {
    const auto nothing = [](int32_t) -> const libkineto::ITraceActivity* { return nullptr; };
    processTrace(logger, nothing, 0, INT64_MAX);
  }

  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked, int64_t,
                    int64_t) override {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = libkineto::TraceSpan(0, 0, "mycelya");
    buffer_->gpuOpCount = 0;
    for (std::string_view text = text_; !text.empty();) {
      const size_t end = text.find('\n');
      Put(Parse(text.substr(0, end)), linked);
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    }
    text_.clear();
    for (const auto& activity : buffer_->activities) activity->log(logger);
  }

  // A session may name one device.
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    if (devices_.empty()) return nullptr;
    const int64_t device = *devices_.begin();
    return std::make_unique<libkineto::DeviceInfo>(
        libkineto::DeviceInfo{device, device, "worker of mycelya:" + std::to_string(device), "mycelya"});
  }

  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::vector<libkineto::ResourceInfo> out;
    for (const int64_t device : devices_) {
      out.push_back({kOps, kOps, device, "ops"});
      out.push_back({kPrograms, kPrograms, device, "programs"});
    }
    return out;
  }

  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }

  void pushCorrelationId(uint64_t id) override { PushCaller(id); }
  void popCorrelationId() override { PopCaller(); }

 private:
  // Recording and waits are in the rows of PyTorch's own ops.
  void Put(const Event& e, const libkineto::getLinkedActivityCallback& linked) {
    Row row;
    ActivityType type = ActivityType::PRIVATEUSE1_RUNTIME;
    if (e.track == "op") {
      row = kOps;
      type = ActivityType::CONCURRENT_KERNEL;
    } else if (e.track == "worker") {
      row = kPrograms;
      type = ActivityType::GPU_USER_ANNOTATION;
    } else if (e.track == "compile") {
      row = kCompile;
    } else if (e.track == "send" || e.track == "receive") {
      row = e.track == "send" ? kSend : kReceive;
    } else {
      if (e.track == "dropped" && e.device > 0) {
        errors_.push_back(std::to_string(e.device) + " events of mycelya were left out. Profile fewer steps.");
      }
      return;
    }
    const bool client = type == ActivityType::PRIVATEUSE1_RUNTIME;
    std::string name = client ? "mycelya: " + std::string(e.name.substr(0, e.name.find(' '))) : std::string(e.name);
    buffer_->emplace_activity(buffer_->span, type, name);
    libkineto::GenericTraceActivity& a = *buffer_->activities.back();
    a.startTime = e.began;
    a.endTime = e.ended;
    a.device = static_cast<int32_t>(client ? getpid() : e.device);
    a.resource = row;
    a.threadId = row;
    a.id = static_cast<int32_t>(e.caller);
    if (e.caller != 0) a.linked = linked(static_cast<int32_t>(e.caller));
    if (client) a.addMetadataQuoted("what", std::string(e.name));
    if (!e.place.empty()) a.addMetadataQuoted("line", std::string(e.place));
    if (e.call != 0) a.addMetadata("call", e.call);
    if (e.program != 0) a.addMetadata("program", e.program);
    if (!client) devices_.insert(e.device);
  }

  bool begun_ = false;
  std::string text_;
  std::vector<std::string> errors_;
  std::set<int64_t> devices_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
};

class Profiler : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return types_; }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>& types,
                                                                 const libkineto::Config&) override {
    if (types.count(ActivityType::CONCURRENT_KERNEL) == 0) return nullptr;  // only the CPU is profiled
    return std::make_unique<Session>();
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t, const std::set<ActivityType>& types,
                                                                 const libkineto::Config& config) override {
    return configure(types, config);
  }

 private:
  std::string name_ = "mycelya";
  std::set<ActivityType> types_{ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_USER_ANNOTATION,
                                ActivityType::PRIVATEUSE1_RUNTIME};
};

}  // namespace
}  // namespace mycelya

namespace {
using MycelyaProfiler = mycelya::Profiler;
REGISTER_PRIVATEUSE1_PROFILER(MycelyaProfiler);
}  // namespace

#endif
