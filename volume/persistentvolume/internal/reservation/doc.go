// Package reservation decides who may have a volume, or a claim, now.
//
// The API says who has a volume for good: by the volume's claimRef and the claim's
// volumeName. A [Table] says it for the time before, while this process works on it. Each
// [Entry] says who has something, why, and until when:
//
//	kind          who         has                              until
//	Assumed       a claim     the volume's data, its choice    the API has stored the claimRef
//	Provisioning  a placement the claim's choice               the node is in the claim
//	ForPod        a pod       the claim's use                  the pod is seen on a node, or gone
//	Writing       a worker    the volume's object              its writes are done
//	Making        an operation the volume's storage            it has ended
//	Removing      an operation the volume's storage and data   it has ended
//
// Two entries never have the same thing. That is the whole rule, and [Table.May] and the
// methods that begin with Reserve all go by it: a claim cannot take a volume whose data is
// being removed, nor are its data removed while a claim takes it; a claim has one choice,
// whether that is a volume or a node; a volume has one operation and one writer.
//
// # The life of an entry
//
//	              May says who is in the way
//	                       ▲ no
//	Reserve… ── is it free? ── yes ──▶ entry ──┬── Assume: the API has stored it ──▶ ended
//	                       │                   └── Forget: it is given back ───────▶ ended
//	                       └ no ──▶ asked in vain, and enqueued again ◀── once it has ended
//
// A refused request is not lost: its object is enqueued again when the resource is free.
// Only a writer can wait for its turn, and turns are in order.
//
// # Candidates
//
// A free volume enqueues the claim that has waited longest, and is a candidate of it
// ([Table.EnqueueClaimFor]). A candidate is not reserved: the first claim that reserves the
// volume gets it. A candidate that its claim does not take goes to the next claim
// ([Table.Release]).
//
// # Limits
//
// The claims that name a volume are facts of the API, and which volumes fit is a search:
// both are in package index. That a key of the work queue is worked on by one goroutine,
// and when a failed operation is tried again, is not about who has a volume: packages work
// and operation know it.
//
// One mutex guards the table. It is held for no I/O, and while no other code is called but
// the index and the set of waiting claims, which never call back.
package reservation
