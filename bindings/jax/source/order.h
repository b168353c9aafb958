// Checks that the calls of a program on one rank have an order that XLA must keep: each takes the
// token that the call before it returned. XLA runs calls that nothing orders as it likes, so a
// program with such calls is wrong on every rank, though it may run right for long; it is found out
// at its first run, whatever XLA did.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>

namespace fsccl_jax {

// The first number of each token of a group. It is not zero: then the first token is a constant of
// the program, for which XLA compiles no code.
inline float mark_of(int64_t group) { return static_cast<float>(group + 1); }

class Order {
 public:
  // `token` came to a call of `site` in `run`, an execution of a program: 0, the program's first
  // token, or what next() gave. Returns false where nothing orders this call after the last one.
  bool follows(float token, int64_t run) const {
    return token == 0 ? !begun_ || run != run_ : token == static_cast<float>(last_);
  }
  // The call is made. Returns the token that the next call takes: whole numbers, which grow within
  // a run, and which a float holds exactly.
  float next(float token, int64_t run, const std::string& site) {
    if (token == 0 && last_ >= kMost / 2) last_ = 0;
    begun_ = true;
    run_ = run;
    site_ = site;
    return static_cast<float>(++last_);
  }
  const std::string& last_site() const { return site_; }

 private:
  static constexpr int32_t kMost = 1 << 24;
  bool begun_ = false;
  int64_t run_ = 0;
  int32_t last_ = 0;
  std::string site_;
};

}  // namespace fsccl_jax
