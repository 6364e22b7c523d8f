package hostns

// ChildPID is the process in the host's namespaces; 0: there is none.
func (m *Mounter) ChildPID() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.current == nil {
		return 0
	}
	return m.current.cmd.Process.Pid
}
