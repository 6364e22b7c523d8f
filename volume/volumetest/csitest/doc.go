// Package csitest has a CSI driver for tests of programs that call CSI drivers, and a suite
// for such programs: [Run].
//
// A [Driver] offers the Identity, Controller and Node services of the CSI
// specification 1.13 on a Unix socket. Its volumes are directories, which are bound
// to their places, or image files on loop devices with a file system, or the loop
// devices themselves. For fake mounters there are image files in the place of devices.
// Ordinary callers find a correct driver:
//
//   - Each call may be repeated.
//   - A volume and what is in it outlives the driver.
//   - It refuses a call whose order is wrong, such as NodePublishVolume of a volume
//     that is not staged, and notes it (see [Driver.Violations]).
//
// Everything else is for hostile conditions:
//
//   - [Driver.Inject] strikes a call before or after its effect: with a gRPC code, a
//     delay, a hang, or a hook that kills the driver.
//   - [Driver.Kill] ends the driver as SIGKILL does. The socket's file stays.
//     [Driver.Start] starts it again, at another socket if need be.
//   - [Driver.Configure] changes version, capabilities or anything else for the next
//     start.
//   - A [Misbehaviour] is a fault of a real driver.
//
// The package is for tests and for examples. It needs gRPC.
package csitest
