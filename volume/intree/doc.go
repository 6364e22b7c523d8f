// Package intree helps to port a volume plugin of Kubernetes' own tree
// (k8s.io/kubernetes/pkg/volume/<name>) to podvol. It has the helpers of
// pkg/volume and pkg/volume/util that such plugins call, under their names there,
// on podvol's own mounts, tear-down and empty directories.
//
// A port imports volume from podvol, this package in place of pkg/volume/util,
// and goes on as it was, but for these:
//
//   - whatever may block takes a context first, as podvol's interfaces do: SetUp,
//     SetUpAt, TearDown, TearDownAt, ConstructVolumeSpec, Recycle. [WithContext]
//     gives the mounter's old methods that context;
//   - Init keeps [NewHost] of its argument, which has the tree's methods:
//     GetMounter with a name, NewWrapperMounter, NewMetricsStatFS;
//   - NewMounter and NewUnmounter call [Host.CheckVolume] and [Host.CheckUnmount]
//     first, as names lead to directories;
//   - CanSupport, and all that reads a source, accepts a nil spec;
//   - TearDownAt calls [ClearReady] where SetUpAt calls [SetReady].
//
// So nfs.go of Kubernetes 1.30 takes 20 changed lines to compile, and 16 more to
// pass package volumetest, which finds gaps of a port. git_repo.go takes 17 and
// 29 more: the tree's does not give files to a pod's group, remove its mark,
// begin anew after half a clone, or end git when the context ends.
//
// Each helper says where it differs from the tree's.
package intree
