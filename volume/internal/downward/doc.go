// Package downward reads what a pod may be told of itself: its fields and its
// containers' resources, in a volume's file or in an environment variable. What
// is asked for and how it is written are the API's (v1.37).
package downward
