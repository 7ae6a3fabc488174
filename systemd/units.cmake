# stfs_configure_units(FROM TO COMMAND): writes stfs@.service and stfs-remote@.service, which are one
# template. stfs@ serves local files and has no network; stfs-remote@ serves URLs too.
function(stfs_configure_units FROM TO STFS_COMMAND)
  set(STFS_UNIT "stfs@")
  set(STFS_OF "")
  set(STFS_ORDER "After=local-fs.target remote-fs.target")
  set(STFS_NETWORK "PrivateNetwork=yes
RestrictAddressFamilies=AF_UNIX
IPAddressDeny=any")
  configure_file(${FROM}/stfs@.service.in ${TO}/stfs@.service @ONLY)
  set(STFS_UNIT "stfs-remote@")
  set(STFS_OF ", which may be elsewhere (hf://, s3://, https://)")
  set(STFS_ORDER "Wants=network-online.target
After=network-online.target local-fs.target remote-fs.target")
  set(STFS_NETWORK "PrivateNetwork=no
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
# What was fetched: /var/cache/stfs, for all units. `systemctl clean --what=cache` empties it.
CacheDirectory=stfs
CacheDirectoryMode=0700
Environment=STFS_CACHE=%C/stfs")
  configure_file(${FROM}/stfs@.service.in ${TO}/stfs-remote@.service @ONLY)
endfunction()
