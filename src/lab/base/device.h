// The devices on which models compute, by their names in recipes and commands.
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace tsallis::lab {

// Says what a name has to be; "" if it is "cpu", "cuda" or "cuda:N". A Check of recipes' keys.
std::string CheckDeviceName(const std::string& name);

// The device of a name; "cuda" is "cuda:0". Loads the CUDA half of torch when it is first asked
// for, so nothing of the kind may have run on tensors before. UsageError for another name, for a
// torch without CUDA, and for a device that is not there.
//
// A test that registers a backend of its own as torch's PrivateUse1 may use it by that backend's
// name (lab/testing/pretend_device.h); the program registers none, so there is no such name.
c10::Device DeviceNamed(const std::string& name);

}  // namespace tsallis::lab
