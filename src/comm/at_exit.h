// A process may end by exit(0) or a return from main without having destroyed its communicators. It
// then leaves its jobs: the other ranks learn that it left, and can complete the calls for which
// they already have everything that they need from it. Any other end is a death.
#pragma once

namespace fsccl {

class JobContext;

void leave_at_exit(JobContext* context);
void forget_at_exit(JobContext* context);

}  // namespace fsccl
