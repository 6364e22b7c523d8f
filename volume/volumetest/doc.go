// Package volumetest is for the tests of plugin authors.
//
// [NewHost] gives a plugin a whole fake node: directories below t.TempDir, a
// [mount.FakeMounter], and every role of a volume host in memory, with
// injected faults. Nothing in it needs privilege:
//
//	host := volumetest.NewHost(t)
//	host.Add(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s"}})
//	plugin := myplugin.New()
//	if err := plugin.Init(host); err != nil { … }
//
// No product package imports it.
package volumetest
