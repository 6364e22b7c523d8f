// Package fakehost is a fake node's host, for tests without a node.
//
// [New] gives a plugin all that a node gives it: directories below t.TempDir, a
// [fakemount.Mounter], and every role of a volume host in memory, with injected faults.
// Nothing in it needs privilege:
//
//	host := fakehost.New(t)
//	host.Add(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s"}})
//	plugin := myplugin.New()
//	if err := plugin.Init(host); err != nil { … }
//	mounter, err := plugin.NewMounter(spec, fakehost.Pod("web"))
//
// [Host.InjectRole] and the Inject of [Host.Fake] let calls fail or hang, and
// [Host.RoleCalls] and [Host.RecordedEvents] tell what was asked and said.
// [Host.AssertTornDown] looks for what a plugin left behind. No product package imports it.
package fakehost
