#include "transports/exchange.h"

#include <string_view>

#include "transports/ucx/ucx.h"

namespace fsccl {

#if FSCCL_WITH_UCX
ExchangeTerms exchange_terms() { return ucx::exchange_terms(); }
Result<std::unique_ptr<Exchange>> make_exchange(int rank, int ranks) {
  return ucx::make_exchange(rank, ranks);
}
#else
ExchangeTerms exchange_terms() {
  ExchangeTerms terms;
  std::string_view(ucx::kNotBuilt).copy(terms.why, sizeof terms.why - 1);
  return terms;
}
Result<std::unique_ptr<Exchange>> make_exchange(int, int) {
  return fail(FSCCL_ERR_NOT_AVAILABLE, "{}", ucx::kNotBuilt);
}
#endif

}  // namespace fsccl
