// Package mounttable reads the kernel's mount table.
//
// A [Table] is kept in memory. The kernel signals changes (index_signals.go); only the
// changed mounts are read again (index_read.go, by statmount(2), else from mountinfo),
// into a graph by parent, target, source and device (index_graph.go). [Uncached] reads
// /proc/self/mountinfo for each question.
package mounttable
