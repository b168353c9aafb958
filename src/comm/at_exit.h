// A process that ends well, by exit(0) or a return from main, without having destroyed its
// communicators leaves its jobs: others hear that it left, and can finish the calls in which they
// have all they need from it. Any other end is a death.
#pragma once

namespace fsccl {

class JobContext;

void leave_at_exit(JobContext* context);
void forget_at_exit(JobContext* context);

}  // namespace fsccl
