// Package election lets one of several replicas work at a time: the replica that
// holds a Lease of the Kubernetes API. [Run] campaigns for it with client-go's
// leaderelection. So replicas of other versions, and kubectl, understand it.
//
// # Differences from client-go
//
//   - client-go releases a lease when it is told to end, or when it cannot renew
//     it, whether or not the leader's work has ended. Here the lease is released
//     only after the work has returned. Until then it is renewed as long as that
//     is possible.
//   - client-go counts its time from the answer to a renewal. If an API server
//     answers late, it leads for longer than others wait. Here the time counts
//     from the sending of the renewal.
//   - client-go leads until the renew deadline even if it has seen another holder
//     of the lease. Here that ends the work at once.
//   - client-go takes a lease with its own identity for its own. Here every call
//     of [Run] has a unique identity.
//
// # Guarantees
//
// No two replicas lead at the same time under one condition: lead has returned,
// or its process has ended, before LeaseDuration has passed since the last
// renewal was sent, by the clocks of the others. lead's context ends
// RenewDeadline after that sending. [Run] returns an error Grace later; the
// process should end with it.
//
// The limits:
//
//   - If the Lease is deleted, or gets another holder by hand, another replica
//     leads before this one knows. That takes up to RetryPeriod.
//   - After the machine was suspended, lead may run for up to RetryPeriod before
//     that is noticed.
//
// Against both, and against a lead that does not return, writes should carry the
// resourceVersion that they are based on.
package election
