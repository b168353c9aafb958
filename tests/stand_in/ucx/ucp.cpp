// A stand-in for a UCX with CUDA (README.md). Each function that it does not change jumps to the
// real library, whose functions it finds when it is loaded.
#include <dlfcn.h>
#include <ucp/api/ucp.h>

#include <cstdio>
#include <cstdlib>

namespace {

void* find(const char* name) {
  static void* const real = dlopen(REAL_UCP, RTLD_NOW | RTLD_LOCAL);
  void* const found = real ? dlsym(real, name) : nullptr;
  if (found) return found;
  std::fprintf(stderr, "stand-in for UCX: no %s in %s\n", name, REAL_UCP);
  std::abort();
}

template <class Function>
Function* real(Function*, const char* name) {
  return reinterpret_cast<Function*>(find(name));
}

ucp_request_param_t as_host(const ucp_request_param_t* param, const char* function) {
  ucp_request_param_t made = *param;
  if (!(made.op_attr_mask & UCP_OP_ATTR_FIELD_MEMORY_TYPE) ||
      made.memory_type != UCS_MEMORY_TYPE_CUDA) {
    std::fprintf(stderr, "stand-in for UCX: %s was not told that its memory is a GPU's\n",
                 function);
    std::abort();
  }
  made.memory_type = UCS_MEMORY_TYPE_HOST;
  return made;
}

}  // namespace

extern "C" {

void ucp_get_version(unsigned* major, unsigned* minor, unsigned* release) {
  const char* const plays = std::getenv("FSCCL_STAND_IN_UCX_VERSION");
  if (std::sscanf(plays ? plays : "1.18.0", "%u.%u.%u", major, minor, release) != 3) std::abort();
}

ucs_status_t ucp_context_query(ucp_context_h context, ucp_context_attr_t* attributes) {
  const ucs_status_t status = real(&ucp_context_query, "ucp_context_query")(context, attributes);
  if (status == UCS_OK && !std::getenv("FSCCL_STAND_IN_UCX_WITHOUT_CUDA"))
    attributes->memory_types |= UCS_BIT(UCS_MEMORY_TYPE_CUDA);
  return status;
}

ucs_status_ptr_t ucp_tag_send_nbx(ucp_ep_h to, const void* buffer, size_t count, ucp_tag_t tag,
                                  const ucp_request_param_t* param) {
  const ucp_request_param_t host = as_host(param, "ucp_tag_send_nbx");
  return real(&ucp_tag_send_nbx, "ucp_tag_send_nbx")(to, buffer, count, tag, &host);
}

ucs_status_ptr_t ucp_tag_recv_nbx(ucp_worker_h worker, void* buffer, size_t count, ucp_tag_t tag,
                                  ucp_tag_t mask, const ucp_request_param_t* param) {
  const ucp_request_param_t host = as_host(param, "ucp_tag_recv_nbx");
  return real(&ucp_tag_recv_nbx, "ucp_tag_recv_nbx")(worker, buffer, count, tag, mask, &host);
}

#if defined(__x86_64__)
#define JUMP(name) "  jmp *real_" #name "(%rip)\n"
#elif defined(__aarch64__)
#define JUMP(name) "  adrp x16, real_" #name "\n  ldr x16, [x16, :lo12:real_" #name "]\n  br x16\n"
#endif
#define HAND_ON(name)                                                          \
  __attribute__((used, visibility("hidden"))) void* real_##name = find(#name); \
  asm(".text\n.globl " #name "\n.type " #name ", %function\n" #name            \
      ":\n" JUMP(name) ".size " #name ", .-" #name "\n.text\n");

HAND_ON(ucs_status_string)
HAND_ON(ucp_config_read)
HAND_ON(ucp_config_modify)
HAND_ON(ucp_config_release)
HAND_ON(ucp_init_version)
HAND_ON(ucp_worker_create)
HAND_ON(ucp_worker_destroy)
HAND_ON(ucp_worker_get_address)
HAND_ON(ucp_worker_release_address)
HAND_ON(ucp_worker_get_efd)
HAND_ON(ucp_worker_arm)
HAND_ON(ucp_worker_signal)
HAND_ON(ucp_worker_progress)
HAND_ON(ucp_worker_flush_nbx)
HAND_ON(ucp_worker_set_am_recv_handler)
HAND_ON(ucp_ep_create)
HAND_ON(ucp_ep_close_nbx)
HAND_ON(ucp_ep_flush_nbx)
HAND_ON(ucp_ep_print_info)
HAND_ON(ucp_mem_map)
HAND_ON(ucp_mem_unmap)
HAND_ON(ucp_rkey_pack)
HAND_ON(ucp_rkey_buffer_release)
HAND_ON(ucp_ep_rkey_unpack)
HAND_ON(ucp_rkey_destroy)
HAND_ON(ucp_put_nbx)
HAND_ON(ucp_get_nbx)
HAND_ON(ucp_am_send_nbx)
HAND_ON(ucp_am_recv_data_nbx)
HAND_ON(ucp_am_data_release)
HAND_ON(ucp_request_check_status)
HAND_ON(ucp_request_cancel)
HAND_ON(ucp_request_free)

}  // extern "C"
