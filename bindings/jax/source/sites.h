// Names of call sites, and the numbers that FSCCL compares (fsccl_comm_set_site): 48 bits are of
// the name of a site, and 16 count how often this rank has called it. All ranks run programs that
// were made from one source, so each knows the names that the others can be at.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace fsccl_jax {

// The number of the first call of a site, which is remembered; 0 where another site has the same.
// The ranks' numbers of a name are equal. Any thread.
uint64_t site_of(std::string_view name);

// The number of a site's `count`th call, from 0.
inline uint64_t call_of(uint64_t site, uint64_t count) { return site | (count & 0xffff); }

// The site of a rank that has found calls which nothing orders. All ranks know it.
constexpr std::string_view kUnordered = "a call that nothing orders";

// FSCCL's words with the names of the sites that this process knows in place of their numbers. Any
// thread.
std::string with_names(std::string text);

}  // namespace fsccl_jax
