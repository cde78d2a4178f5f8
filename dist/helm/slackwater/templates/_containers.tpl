{{- define "slackwater.daemon" -}}
- name: slackwater-daemon
  image: {{ include "slackwater.own" . }}
  args:
    - daemon
    {{- if .Values.daemon.keep }}
    - --keep
    {{- end }}
    - --config=/etc/slackwater/slackwater.toml
  envFrom:
    - secretRef: {name: {{ .Values.storeSecret }}, optional: true}
  securityContext:
    # Mounts must appear on the host, and /dev/fuse is a device of the host.
    privileged: true
  resources: {{- toYaml .Values.daemon.resources | nindent 4 }}
  volumeMounts:
    {{- include "slackwater.shared-mounts" . | nindent 4 }}
    - name: configuration
      mountPath: /etc/slackwater
      readOnly: true
    # The cache is here. It outlives the container, so that the next daemon writes back what a killed one left.
    - name: memory
      mountPath: /dev/shm
    - name: fuse
      mountPath: /dev/fuse
{{- end }}

{{- define "slackwater.plugin" -}}
- name: slackwater
  image: {{ include "slackwater.own" . }}
  args:
    - csi
    - --endpoint=unix:///csi/csi.sock
    - --node-id=$(NODE_NAME)
    # A directory of a pool can be used on this node alone.
    - --topology=slackwater.csi/node=$(NODE_NAME)
    {{- range $name, $path := .Values.pools }}
    - --pool={{ $name }}={{ $path }}
    {{- end }}
    {{- range $name, $url := .Values.stores }}
    - --pool={{ $name }}={{ $url }}
    {{- end }}
  env:
    - name: NODE_NAME
      valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
  envFrom:
    - secretRef: {name: {{ .Values.storeSecret }}, optional: true}
  securityContext:
    # Bind mounts of volumes must appear on the host. Kubernetes allows mountPropagation: Bidirectional to privileged
    # containers only.
    privileged: true
  livenessProbe:
    httpGet:
      path: /healthz
      port: 9808
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 5
  resources: {requests: {cpu: 10m, memory: 32Mi}}
  volumeMounts:
    {{- include "slackwater.shared-mounts" . | nindent 4 }}
    - name: plugin
      mountPath: /csi
    - name: state
      mountPath: /var/lib/slackwater
{{- end }}

{{- /* The mounts of the daemon and the plugin. A path is the same on the host, in the plugin and in the daemon. */ -}}
{{- define "slackwater.shared-mounts" -}}
- name: kubelet
  mountPath: {{ .Values.kubeletDirectory }}
  mountPropagation: Bidirectional
- name: daemon
  mountPath: /run/slackwater
{{- range $name, $path := .Values.pools }}
- name: pool-{{ $name }}
  mountPath: {{ $path }}
{{- end }}
# The cgroups of pods, which are tenants of the daemon.
- name: cgroups
  mountPath: /sys/fs/cgroup
  readOnly: true
# The image has no certificates; those of the host are for object stores over TLS.
- name: certificates
  mountPath: /etc/ssl/certs
  readOnly: true
{{- end }}

{{- define "slackwater.sidecars" -}}
- name: csi-node-driver-registrar
  image: {{ include "slackwater.image" (list .Values.sidecars.registry .Values.sidecars.registrar) }}
  args:
    - --csi-address=/csi/csi.sock
    - --kubelet-registration-path={{ .Values.kubeletDirectory }}/plugins/slackwater.csi/csi.sock
  resources: {requests: {cpu: 10m, memory: 20Mi}}
  volumeMounts:
    - name: plugin
      mountPath: /csi
    - name: registration
      mountPath: /registration
- name: csi-provisioner
  image: {{ include "slackwater.image" (list .Values.sidecars.registry .Values.sidecars.provisioner) }}
  args:
    - --csi-address=/csi/csi.sock
    # Each node makes and deletes the volumes of its own pool.
    - --node-deployment=true
    - --strict-topology=true
    - --immediate-topology=false
    - --extra-create-metadata=true
    # The longest unmount, with time for the answer.
    - --timeout=90s
  env:
    - name: NODE_NAME
      valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
    - name: NAMESPACE
      valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
    - name: POD_NAME
      valueFrom: {fieldRef: {fieldPath: metadata.name}}
  resources: {requests: {cpu: 10m, memory: 20Mi}}
  volumeMounts:
    - name: plugin
      mountPath: /csi
- name: csi-resizer
  image: {{ include "slackwater.image" (list .Values.sidecars.registry .Values.sidecars.resizer) }}
  args:
    - --csi-address=/csi/csi.sock
    # One of them records the new size; the kubelet of the volume's node has the plugin set it.
    - --leader-election=true
    - --handle-volume-inuse-error=false
  env:
    - name: NAMESPACE
      valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
  resources: {requests: {cpu: 10m, memory: 20Mi}}
  volumeMounts:
    - name: plugin
      mountPath: /csi
- name: livenessprobe
  image: {{ include "slackwater.image" (list .Values.sidecars.registry .Values.sidecars.livenessprobe) }}
  args:
    - --csi-address=/csi/csi.sock
    - --http-endpoint=:9808
  resources: {requests: {cpu: 10m, memory: 20Mi}}
  volumeMounts:
    - name: plugin
      mountPath: /csi
{{- end }}
