// Package drivers has the CSI drivers of a node as the programs that they are: how they are
// found, one connection for each, their calls, and what their answers mean. It knows nothing
// of volumes but their ids.
//
//   - A driver is a name and a socket: of the configuration, or of a registration ([Set.Run],
//     [Set.Discover]).
//   - [Set.Do] makes a call: one at a time for a volume, with a limit, and with an error that
//     says whether anything may have been done.
//   - [Session] is what the driver can do as long as a connection lives.
package drivers
