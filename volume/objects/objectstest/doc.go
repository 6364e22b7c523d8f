// Package objectstest is for tests of code that changes API objects. A [Client]
// sees an [objects.Store] as a controller sees an API server over the network:
// its cache lags, calls fail before or after they took effect, and the process
// dies at any call. [Suite] tests other implementations of the interfaces of
// package objects.
package objectstest
