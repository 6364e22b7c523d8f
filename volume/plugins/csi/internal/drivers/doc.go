// Package drivers talks to the CSI drivers of a node: it finds them, keeps one connection to
// each, makes calls, and says what an error means. Of volumes it knows only the ids.
//
//   - A driver is a name and a socket. The configuration names them, or the driver registers
//     itself ([Set.Run], [Set.Discover]).
//   - [Set.Do] makes a call: one at a time for a volume, with a limit, and with an error that
//     says whether anything may have been done.
//   - [Session] has the driver's capabilities as long as a connection lives.
package drivers
