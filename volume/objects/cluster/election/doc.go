// Package election lets one of several replicas work at a time: the one that
// holds a Lease of the Kubernetes API. [Run] campaigns for it with client-go's
// leaderelection, so that replicas of other versions, and kubectl, understand it.
//
// # What it adds
//
// client-go releases a lease when it is told to end, or when it cannot renew it,
// whether or not the work that the lease stands for has ended. Here it is given up
// only after the work has returned; until then it is renewed as long as that goes.
//
// client-go counts its time from the answer to a renewal. An API server that
// answers late makes it lead for longer than others wait. Here it counts from
// when the renewal was sent.
//
// client-go goes on to lead until the renew deadline though it has seen that
// another one holds the lease. Here that ends the work at once.
//
// client-go takes a lease that names its own identity for its own. Here every
// call of [Run] has an identity that nobody else has.
//
// # What it guarantees
//
// No two replicas lead at the same time if lead has returned, or its process ended,
// before LeaseDuration has passed since the last renewal was sent, by the clocks of
// the others. lead's context ends RenewDeadline after that, and [Run] returns an
// error to end the process with after Grace more. Two things are out of its hands.
// Who deletes the Lease, or writes another holder into it, makes another replica
// lead before this one has heard of it, which takes up to RetryPeriod. And after
// the machine was suspended lead may run for up to RetryPeriod before that is
// noticed. Against both, and against a lead that goes on, writes should carry the
// resourceVersion that they are based on.
package election
