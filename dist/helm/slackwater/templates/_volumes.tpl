{{- define "slackwater.volumes" -}}
{{- $inPod := eq .Values.daemon.place "pod" -}}
- name: plugin
  hostPath: {path: {{ .Values.kubeletDirectory }}/plugins/slackwater.csi, type: DirectoryOrCreate}
- name: registration
  hostPath: {path: {{ .Values.kubeletDirectory }}/plugins_registry, type: Directory}
- name: kubelet
  hostPath: {path: {{ .Values.kubeletDirectory }}, type: Directory}
- name: daemon
  # With a daemon on the host, the pod starts when that has made its runtime directory.
  hostPath: {path: /run/slackwater, type: {{ ternary "DirectoryOrCreate" "Directory" $inPod }}}
- name: state
  hostPath: {path: /var/lib/slackwater, type: DirectoryOrCreate}
{{- range $name, $path := .Values.pools }}
- name: pool-{{ $name }}
  # If its disk is not mounted, the pod waits.
  hostPath: {path: {{ $path }}, type: Directory}
{{- end }}
- name: cgroups
  hostPath: {path: /sys/fs/cgroup, type: Directory}
- name: certificates
  hostPath: {path: /etc/ssl/certs, type: DirectoryOrCreate}
{{- if $inPod }}
- name: configuration
  configMap: {name: slackwater-daemon}
- name: memory
  hostPath: {path: /dev/shm, type: Directory}
- name: fuse
  hostPath: {path: /dev/fuse, type: CharDevice}
{{- end }}
{{- end }}
