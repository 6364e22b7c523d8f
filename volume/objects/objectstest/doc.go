// Package objectstest is for tests of what changes API objects: a [Client] sees
// an [objects.Store] as a controller sees an API server over the network, with
// a cache that lags, calls that fail before or after they took effect, and a
// process that dies at any of them. [Suite] tests whatever else implements the
// interfaces of package objects.
package objectstest
